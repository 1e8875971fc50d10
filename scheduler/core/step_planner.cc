#include "scheduler/core/step_planner.h"

#include <algorithm>
#include <utility>

namespace flotilla {

PlanOutcome StepPlanner::Make() {
  if (!state_.epoch.has_value()) return {.hold = Hold::kNotReady};
  EpochState& epoch = *state_.epoch;
  if (epoch.in_flight.size() > state_.description->lag) return {.hold = Hold::kPipelineFull};
  plan_.epoch = epoch.epoch;
  plan_.step = Step(epoch.last_step.value() + 1);

  Assess();
  // With no result outstanding every length is exact and no block is about to
  // come free: now the last branch of the policy gives its blocks to the others.
  while (!lacking_.empty() && epoch.in_flight.empty()) {
    state_.Preempt(state_.branches[state_.running.back()].request);
    Assess();
  }
  if (SomeoneSatOut()) return {.hold = Hold::kMemory};
  if (!WorthSending()) {
    if (!lacking_.empty()) return {.hold = Hold::kMemory};
    return {.hold = state_.requests.size() == 0 ? Hold::kIdle : Hold::kResults};
  }

  epoch.handles.DropRetired(plan_);
  EmitSkips();
  EmitOpenings();
  EmitDecodes();
  for (const Opening& opening : openings_) EmitChunk(opening.slot, opening.rows);
  for (const Chunk& chunk : chunks_) EmitChunk(chunk.slot, chunk.rows);
  EmitAdmissions();

  plan_.digest = epoch.kv.digest();
  plan_.predicted_ns =
      state_.rates.PredictStepNs(prefill_rows_, static_cast<std::uint32_t>(decodes_.size()));
  std::sort(runs_.begin(), runs_.end(),
            [](const PlannedRun& a, const PlannedRun& b) { return a.handle < b.handle; });
  epoch.last_step = plan_.step;
  epoch.in_flight.push_back({.step = plan_.step, .runs = std::move(runs_)});
  ++state_.counters.plans;
  state_.counters.prefix_waits += waits_for_prefix_;
  state_.counters.evictions += epoch.kv.TakeEvictions();
  return {.plan = std::move(plan_)};
}

bool StepPlanner::DueInThisStep(const Branch& branch) const {
  const std::uint32_t lag = state_.description->lag;
  return plan_.step.value() % lag == branch.cohort &&
         plan_.step.value() >= branch.last_chunk.value() + lag;
}

void StepPlanner::Assess() {
  decodes_.clear();
  finished_.clear();
  lacking_.clear();
  chunks_.clear();
  openings_.clear();
  due_later_ = false;
  free_blocks_ = state_.epoch->kv.pool().available();
  owed_blocks_ = 0;
  budget_ = state_.MaxStepTokens();
  AssessDecodes();
  AssessPrefills();
}

bool StepPlanner::InFirstRequest(const Branch& branch) const {
  return branch.request == state_.branches[state_.running.front()].request;
}

bool StepPlanner::IsBeamStep(const Branch& branch) const {
  if (!state_.Dependent(branch) || state_.OutputTokens(branch) == 0) return false;
  const auto known = static_cast<std::uint32_t>(branch.tokens.size());
  if (branch.state == BranchState::kPrefill) return branch.length.upper + 1 == known;
  return branch.state == BranchState::kPending && branch.fork.length + 1 == known &&
         ParentIsReady(branch);
}

// The positions that the branch is to share are in plans sent.
bool StepPlanner::ParentIsReady(const Branch& branch) const {
  if (!branch.fork.parent.has_value() || !state_.epoch->kv.can_fork()) return false;
  const Branch& parent = state_.branches[*branch.fork.parent];
  return parent.open() && parent.length.upper >= branch.fork.length;
}

void StepPlanner::AssessDecodes() {
  for (const Slot slot : state_.running) {
    const Branch& branch = state_.branches[slot];
    if (branch.state == BranchState::kDecode) {
      AssessDecode(slot);
    } else if (IsBeamStep(branch)) {
      AssessBeamStep(slot);
    }
  }
}

void StepPlanner::AssessDecode(Slot slot) {
  const Branch& branch = state_.branches[slot];
  if (!DueInThisStep(branch)) {
    due_later_ |= !branch.surely_finished();
  } else if (branch.surely_finished()) {
    finished_.push_back(slot);
  } else {
    const std::uint64_t lacks = state_.epoch->kv.Lacks(branch, branch.length.upper + 1);
    if (lacks > free_blocks_) {
      lacking_.push_back(slot);
      return;
    }
    free_blocks_ -= lacks;
    --budget_;
    decodes_.push_back(slot);
  }
}

void StepPlanner::AssessBeamStep(Slot slot) {
  const Branch& branch = state_.branches[slot];
  if (!branch.open()) {
    if (const std::optional<Opening> opening = FindOpening(slot, free_blocks_)) {
      TakeOpening(*opening);
    } else {
      lacking_.push_back(slot);
    }
    return;
  }
  const std::uint64_t lacks = state_.epoch->kv.Lacks(branch, branch.length.upper + 1);
  if (lacks > free_blocks_) {
    lacking_.push_back(slot);
    return;
  }
  free_blocks_ -= lacks;
  --budget_;
  chunks_.push_back({slot, 1});
}

// A prompt short of blocks takes a smaller chunk or waits for the branches
// before it. Only the first request of all makes others give way, so it always
// advances.
void StepPlanner::AssessPrefills() {
  const bool decodes_lack = !lacking_.empty();
  for (const Slot slot : state_.running) {
    const Branch& branch = state_.branches[slot];
    if (IsBeamStep(branch)) continue;
    if (branch.state == BranchState::kPrefill) AssessPrefill(slot, decodes_lack);
    if (branch.state != BranchState::kPending) continue;
    const std::optional<Opening> opening = FindOpening(slot, decodes_lack ? 0 : free_blocks_);
    if (opening.has_value()) TakeOpening(*opening);
  }
}

void StepPlanner::AssessPrefill(Slot slot, bool decodes_lack) {
  const KvLedger& kv = state_.epoch->kv;
  const Branch& branch = state_.branches[slot];
  const std::uint32_t begin = branch.length.upper;
  const std::uint32_t wanted =
      std::min({branch.prefill_tokens - begin, state_.options.max_chunk_tokens, budget_});
  const std::uint32_t rows =
      kv.Reach(branch, begin + wanted, decodes_lack ? 0 : free_blocks_) - begin;
  const std::uint64_t takes = kv.Lacks(branch, begin + rows);
  owed_blocks_ += kv.Lacks(branch, branch.prefill_tokens) - takes;
  if (rows > 0) {
    free_blocks_ -= takes;
    budget_ -= rows;
    chunks_.push_back({slot, rows});
  } else if (wanted > 0 && InFirstRequest(branch)) {
    lacking_.push_back(slot);
  }
}

std::uint64_t StepPlanner::OpeningNeeds(const Opening& opening) const {
  const KvLedger& kv = state_.epoch->kv;
  const Branch& branch = state_.branches[opening.slot];
  if (branch.fork.parent.has_value()) {
    return kv.ForkNeeds(branch.fork.length, branch.fork.length + opening.rows);
  }
  return opening.match.pinned + kv.BlocksFor(kv.PositionsOf(opening.match) + opening.rows) -
         opening.match.blocks;
}

// None while its parent has not come far enough, or for want of rows or blocks.
std::optional<StepPlanner::Opening> StepPlanner::FindOpening(Slot slot, std::uint64_t blocks) {
  const KvLedger& kv = state_.epoch->kv;
  Branch& branch = state_.branches[slot];
  if (!kv.can_fork()) {
    branch.fork = ForkPlan{};
    state_.UpdateOwed(branch);
  }
  Opening opening{.slot = slot, .rows = 0, .match = {}};
  std::uint32_t begin = branch.fork.length;
  const bool forks = branch.fork.parent.has_value();
  if (!forks) {
    opening.match = kv.FindPrefix(branch, state_.RequestOf(branch));
    begin = kv.PositionsOf(opening.match);
  }
  const auto whole = static_cast<std::uint32_t>(branch.tokens.size()) - begin;
  opening.rows = whole;
  const std::uint64_t needs = OpeningNeeds(opening);
  owed_blocks_ += needs;
  if (forks && !ParentIsReady(branch)) return std::nullopt;
  const std::uint32_t wanted = std::min({whole, state_.options.max_chunk_tokens, budget_});
  for (opening.rows = wanted; opening.rows > 0; opening.rows /= 2) {
    if (OpeningNeeds(opening) <= blocks) return opening;
  }
  if (wanted > 0 && InFirstRequest(branch) && !IsBeamStep(branch)) lacking_.push_back(slot);
  return std::nullopt;
}

void StepPlanner::TakeOpening(const Opening& opening) {
  const std::uint64_t takes = OpeningNeeds(opening);
  free_blocks_ -= takes;
  owed_blocks_ -= takes;
  budget_ -= opening.rows;
  openings_.push_back(opening);
}

bool StepPlanner::SomeoneSatOut() const {
  return std::any_of(lacking_.begin(), lacking_.end(),
                     [this](Slot slot) { return state_.branches[slot].sat_out; });
}

// Another prompt that begins alike is about to be computed further than this
// one's match: to wait for it is cheaper than to compute it twice.
bool StepPlanner::PrefixIsBeingComputed(const Request& head, const KvLedger::Match& match) const {
  const Branch& first = state_.branches[head.branches.front()];
  return std::any_of(state_.running.begin(), state_.running.end(), [&](Slot slot) {
    const Branch& other = state_.branches[slot];
    return state_.epoch->kv.WillPublish(other, state_.RequestOf(other), first, head, match);
  });
}

// Blocks for all that the request knows: its first branch begins with the match,
// the others fork.
std::uint64_t StepPlanner::HeadNeeds(const Request& head, const KvLedger::Match& match) const {
  const KvLedger& kv = state_.epoch->kv;
  const auto first = state_.branches[head.branches.front()].tokens.size();
  std::uint64_t needs = match.pinned + kv.BlocksFor(first) - match.blocks;
  for (std::size_t i = 1; i < head.branches.size(); ++i) {
    const Branch& branch = state_.branches[head.branches[i]];
    needs += kv.ForkNeeds(kv.can_fork() ? branch.fork.length : 0, branch.tokens.size());
  }
  // Beams that are still to come begin at the end of the prompt.
  const std::uint64_t beams = head.width() - head.branches.size();
  return needs + beams * kv.ForkNeeds(head.prompt_tokens, head.prompt_tokens + 1);
}

std::optional<KvLedger::Match> StepPlanner::AdmitHead() {
  waits_for_prefix_ = false;
  if (state_.waiting.empty() || budget_ == 0 || !lacking_.empty()) return std::nullopt;
  const Request& head = state_.requests[state_.waiting.head()];
  if (state_.reserved_branches + head.width() > state_.MaxRunning()) return std::nullopt;
  const KvLedger::Match match =
      state_.epoch->kv.FindPrefix(state_.branches[head.branches.front()], head);
  if (state_.running.empty()) return match;  // admission made sure that it fits the pool
  waits_for_prefix_ = PrefixIsBeingComputed(head, match);
  if (waits_for_prefix_) return std::nullopt;
  // All of it must fit beside what is promised already; otherwise several
  // half-computed prompts would wait for each other.
  const std::uint64_t promised =
      owed_blocks_ + std::uint64_t{state_.options.watermark_blocks} * state_.reserved_branches;
  if (free_blocks_ < promised + HeadNeeds(head, match)) return std::nullopt;
  return match;
}

bool StepPlanner::WorthSending() {
  return state_.epoch->handles.drops_pending() || !decodes_.empty() || !chunks_.empty() ||
         !openings_.empty() || due_later_ || AdmitHead().has_value();
}

void StepPlanner::EmitSkips() {
  for (const Slot slot : lacking_) {
    Branch& branch = state_.branches[slot];
    branch.sat_out = true;
    if (branch.state != BranchState::kDecode) continue;  // a prompt just is not run
    plan_.ops.push_back(Skip{.branch = branch.handle});
    state_.epoch->kv.AddSkip(plan_.step, branch.handle);
    ++state_.counters.skips;
  }
}

// Forks come before any run, so that what they copy is what earlier plans wrote.
void StepPlanner::EmitOpenings() {
  EpochState& epoch = *state_.epoch;
  for (const Opening& opening : openings_) {
    Branch& branch = state_.branches[opening.slot];
    if (branch.fork.parent.has_value()) {
      const Request& request = state_.RequestOf(branch);
      branch.handle = epoch.handles.Take(opening.slot, plan_.step);
      branch.cohort = SmallestCohort();
      ++epoch.cohort_sizes[branch.cohort];
      const Branch& parent = state_.branches[*branch.fork.parent];
      state_.counters.block_copies += epoch.kv.Fork(parent, branch, request, plan_);
      ++state_.counters.forks;
    } else {
      Open(opening.slot, opening.match);
    }
    branch.opened = plan_.step;
    branch.state = BranchState::kPrefill;
    branch.prefill_tokens = static_cast<std::uint32_t>(branch.tokens.size());
    state_.UpdateOwed(branch);
  }
}

// Opens a branch that no other can be the parent of.
void StepPlanner::Open(Slot slot, const KvLedger::Match& match) {
  EpochState& epoch = *state_.epoch;
  Branch& branch = state_.branches[slot];
  Request& request = state_.RequestOf(branch);
  branch.fork = ForkPlan{};
  branch.handle = epoch.handles.Take(slot, plan_.step);
  branch.cohort = SmallestCohort();
  ++epoch.cohort_sizes[branch.cohort];
  epoch.kv.Open(branch, request, match, plan_);
  state_.counters.lookup_tokens += branch.tokens.size();
  state_.counters.cached_tokens += branch.length.upper;
  if (!request.was_open) {
    request.cached_tokens = std::min(branch.length.upper, request.prompt_tokens);
  }
  request.was_open = true;
}

void StepPlanner::EmitDecodes() {
  for (const Slot slot : finished_) {
    const Branch& branch = state_.branches[slot];
    runs_.push_back({.handle = branch.handle,
                     .begin = branch.length.max,
                     .end = branch.length.max,
                     .samples = true});
  }
  for (const Slot slot : decodes_) {
    Branch& branch = state_.branches[slot];
    const std::uint32_t begin = branch.length.upper++;
    state_.epoch->kv.Grow(branch, branch.length.upper, plan_);
    branch.sat_out = false;
    runs_.push_back({.handle = branch.handle, .begin = begin, .end = begin + 1, .samples = true});
  }
}

void StepPlanner::EmitChunk(Slot slot, std::uint32_t rows) {
  Branch& branch = state_.branches[slot];
  const std::uint32_t begin = branch.length.upper;
  const std::uint32_t end = begin + rows;
  branch.length.upper = end;
  branch.last_chunk = plan_.step;
  branch.sat_out = false;
  state_.epoch->kv.Grow(branch, end, plan_);
  const Request& request = state_.RequestOf(branch);
  state_.epoch->kv.Publish(branch, request, end);

  const bool last = end == branch.prefill_tokens;
  const bool samples = last && request.stop.max_tokens > 0 && request.beam == nullptr;
  if (last) branch.state = samples ? BranchState::kDecode : BranchState::kEnding;
  // Row i brings the log-probability of prompt token i + 1, if that is one and
  // was not delivered before a preemption.
  const std::uint32_t last_prompt = std::min(end, request.prompt_tokens - 1);
  const bool prompt_logprobs = request.logprobs.prompt_top != LogprobSpec::kOff &&
                               last_prompt > begin && last_prompt >= request.prompt_logprobs_next;
  Run run{.branch = branch.handle,
          .count = rows,
          .sample = samples,
          .prompt_logprobs = prompt_logprobs,
          .append = {branch.tokens.begin() + branch.told_tokens, branch.tokens.end()},
          .candidates = last && request.beam ? request.beam->search.candidates() : 0};
  branch.told_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  state_.epoch->kv.AddRun(plan_.step, run);
  runs_.push_back({.handle = branch.handle,
                   .begin = begin,
                   .end = end,
                   .chunk = true,
                   .samples = samples,
                   .prompt_logprobs = prompt_logprobs,
                   .candidates = run.candidates});
  plan_.ops.push_back(std::move(run));
  prefill_rows_ += rows;
  state_.counters.prefill_tokens += rows;
}

std::uint32_t StepPlanner::SmallestCohort() const {
  const std::vector<std::uint32_t>& sizes = state_.epoch->cohort_sizes;
  return static_cast<std::uint32_t>(std::min_element(sizes.begin(), sizes.end()) - sizes.begin());
}

void StepPlanner::EmitAdmissions() {
  while (const std::optional<KvLedger::Match> match = AdmitHead()) {
    Admit(state_.waiting.head(), *match);
  }
}

// Opens the request's first branch; the others stay pending for now.
void StepPlanner::Admit(Slot slot, const KvLedger::Match& match) {
  const KvLedger& kv = state_.epoch->kv;
  const Request& request = state_.requests[slot];
  const std::uint64_t needs = HeadNeeds(request, match);
  state_.OpenRequest(slot);
  const Slot first = request.branches.front();
  Branch& branch = state_.branches[first];
  Open(first, match);
  branch.opened = plan_.step;
  branch.state = BranchState::kPrefill;
  branch.prefill_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  state_.UpdateOwed(branch);

  const std::uint32_t rows = std::min(
      {branch.prefill_tokens - branch.length.upper, state_.options.max_chunk_tokens, budget_});
  const std::uint64_t takes = match.pinned + kv.Lacks(branch, branch.length.upper + rows);
  free_blocks_ -= takes;
  owed_blocks_ += needs - takes;
  budget_ -= rows;
  EmitChunk(first, rows);
}

}  // namespace flotilla
