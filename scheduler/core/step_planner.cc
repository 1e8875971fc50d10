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
    state_.Preempt(state_.running.back());
    Assess();
  }
  if (SomeoneSatOut()) return {.hold = Hold::kMemory};
  if (!WorthSending()) {
    if (!lacking_.empty()) return {.hold = Hold::kMemory};
    return {.hold = state_.branches.size() == 0 ? Hold::kIdle : Hold::kResults};
  }

  epoch.handles.DropRetired(plan_);
  EmitSkips();
  EmitDecodes();
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
  due_later_ = false;
  free_blocks_ = state_.epoch->kv.pool().available();
  owed_blocks_ = 0;
  budget_ = state_.MaxStepTokens();
  AssessDecodes();
  AssessPrefills();
}

void StepPlanner::AssessDecodes() {
  for (const Slot slot : state_.running) {
    const Branch& branch = state_.branches[slot];
    if (branch.state != BranchState::kDecode) continue;
    if (!DueInThisStep(branch)) {
      due_later_ |= !branch.surely_finished();
    } else if (branch.surely_finished()) {
      finished_.push_back(slot);
    } else {
      const std::uint64_t lacks = state_.epoch->kv.Lacks(branch, branch.length.upper + 1);
      if (lacks > free_blocks_) {
        lacking_.push_back(slot);
        continue;
      }
      free_blocks_ -= lacks;
      --budget_;
      decodes_.push_back(slot);
    }
  }
}

// A prompt short of blocks takes a smaller chunk or waits for the branches
// before it. Only the first of all makes others give way, so it always advances.
void StepPlanner::AssessPrefills() {
  const KvLedger& kv = state_.epoch->kv;
  const bool decodes_lack = !lacking_.empty();
  for (const Slot slot : state_.running) {
    const Branch& branch = state_.branches[slot];
    if (branch.state != BranchState::kPrefill) continue;
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
    } else if (wanted > 0 && slot == state_.running.front()) {
      lacking_.push_back(slot);
    }
  }
}

bool StepPlanner::SomeoneSatOut() const {
  return std::any_of(lacking_.begin(), lacking_.end(),
                     [this](Slot slot) { return state_.branches[slot].sat_out; });
}

// Another prompt that begins alike is about to be computed further than this
// one's match: to wait for it is cheaper than to compute it twice.
bool StepPlanner::PrefixIsBeingComputed(const Branch& head, const KvLedger::Match& match) const {
  return std::any_of(state_.running.begin(), state_.running.end(), [&](Slot slot) {
    return state_.epoch->kv.WillPublish(state_.branches[slot], head, match);
  });
}

std::optional<KvLedger::Match> StepPlanner::AdmitHead() {
  waits_for_prefix_ = false;
  const std::size_t running = state_.running.size();
  if (state_.waiting.empty() || budget_ == 0 || !lacking_.empty() ||
      running >= state_.MaxRunning()) {
    return std::nullopt;
  }
  const HandleTable& handles = state_.epoch->handles;
  if (!handles.available() && !handles.drops_pending()) return std::nullopt;
  const Branch& head = state_.branches[state_.waiting.head()];
  const KvLedger::Match match = state_.epoch->kv.FindPrefix(head);
  if (running == 0) return match;  // admission made sure that it fits the pool
  waits_for_prefix_ = PrefixIsBeingComputed(head, match);
  if (waits_for_prefix_) return std::nullopt;
  // The whole prompt must fit beside what is promised already; otherwise
  // several half-computed prompts would wait for each other.
  const std::uint64_t promised =
      owed_blocks_ + std::uint64_t{state_.options.watermark_blocks} * running;
  const std::uint64_t takes =
      match.pinned + state_.epoch->kv.BlocksFor(head.tokens.size()) - match.blocks;
  if (free_blocks_ < promised + takes) return std::nullopt;
  return match;
}

bool StepPlanner::WorthSending() {
  return state_.epoch->handles.drops_pending() || !decodes_.empty() || !chunks_.empty() ||
         due_later_ || AdmitHead().has_value();
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
  state_.epoch->kv.Publish(branch, end);

  const bool last = end == branch.prefill_tokens;
  const bool samples = last && branch.stop.max_tokens > 0;
  if (last) branch.state = samples ? BranchState::kDecode : BranchState::kEnding;
  // Row i brings the log-probability of prompt token i + 1, if that is one and
  // was not delivered before a preemption.
  const std::uint32_t last_prompt = std::min(end, branch.prompt_tokens - 1);
  const bool prompt_logprobs = branch.logprobs.prompt_top != LogprobSpec::kOff &&
                               last_prompt > begin && last_prompt >= branch.prompt_logprobs_next;
  plan_.ops.push_back(Run{.branch = branch.handle,
                          .count = rows,
                          .sample = samples,
                          .prompt_logprobs = prompt_logprobs});
  state_.epoch->kv.AddRun(plan_.step, branch.handle, rows);
  runs_.push_back({.handle = branch.handle,
                   .begin = begin,
                   .end = end,
                   .chunk = true,
                   .samples = samples,
                   .prompt_logprobs = prompt_logprobs});
  prefill_rows_ += rows;
  state_.counters.prefill_tokens += rows;
}

std::uint32_t StepPlanner::SmallestCohort() const {
  const std::vector<std::uint32_t>& sizes = state_.epoch->cohort_sizes;
  return static_cast<std::uint32_t>(std::min_element(sizes.begin(), sizes.end()) - sizes.begin());
}

void StepPlanner::EmitAdmissions() {
  while (const std::optional<KvLedger::Match> match = AdmitHead()) {
    const Slot slot = state_.waiting.head();
    state_.waiting.Remove(slot);
    Open(slot, *match);
  }
}

void StepPlanner::Open(Slot slot, const KvLedger::Match& match) {
  EpochState& epoch = *state_.epoch;
  Branch& branch = state_.branches[slot];
  if (branch.opened.value() > 0) ++state_.counters.resumptions;
  branch.handle = epoch.handles.Take(slot, plan_.step);
  branch.state = BranchState::kPrefill;
  branch.prefill_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  branch.cohort = SmallestCohort();
  branch.sat_out = false;
  ++epoch.cohort_sizes[branch.cohort];
  state_.AddRunning(slot);
  state_.owed_tokens -= branch.owed_tokens();
  epoch.kv.Open(branch, match, plan_);
  state_.owed_tokens += branch.owed_tokens();
  const std::uint32_t cached = branch.length.upper;
  state_.counters.lookup_tokens += branch.prefill_tokens;
  state_.counters.cached_tokens += cached;
  if (branch.opened.value() == 0) branch.cached_tokens = std::min(cached, branch.prompt_tokens);
  branch.opened = plan_.step;

  const std::uint32_t rows =
      std::min({branch.prefill_tokens - cached, state_.options.max_chunk_tokens, budget_});
  const std::uint64_t takes = epoch.kv.Lacks(branch, cached + rows);
  free_blocks_ -= match.pinned + takes;
  owed_blocks_ += epoch.kv.Lacks(branch, branch.prefill_tokens) - takes;
  budget_ -= rows;
  EmitChunk(slot, rows);
}

}  // namespace flotilla
