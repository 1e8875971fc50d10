#include "scheduler/core/step_planner.h"

#include <algorithm>
#include <utility>

#include "scheduler/core/check.h"

namespace flotilla {

PlanOutcome StepPlanner::Make() {
  if (!state_.epoch.has_value()) return {.hold = Hold::kNotReady};
  EpochState& epoch = *state_.epoch;
  if (epoch.in_flight.size() > state_.description->lag) return {.hold = Hold::kPipelineFull};
  plan_.epoch = epoch.epoch;
  plan_.step = Step(epoch.last_step.value() + 1);

  Choose();
  // With no result outstanding every length is exact and no block is about to
  // come free: now the last branch of the policy gives its blocks to the others.
  // But not while copies to or from tiers hold blocks: those may be enough.
  while (!lacking_.empty() && epoch.in_flight.empty() && !epoch.kv.copies_pending()) {
    if (!TrimBranches()) {
      const Slot last = state_.branches[state_.running.back()].request;
      FLOTILLA_CORE_CHECK(!state_.requests[last].undisturbed);
      state_.Preempt(last, state_.branches[lacking_.front()].request);
    }
    Assess();
  }
  const bool copies = epoch.kv.copies_to_send() || MustPoll();
  if (SomeoneSatOut() && !copies) return {.hold = Hold::kMemory};
  if (!WorthSending() && !copies) {
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
  EmitGuesses();
  StoreAhead();
  epoch.kv.EmitCopies(plan_);

  plan_.digest = epoch.kv.digest();
  plan_.predicted_ns = state_.rates.PredictStepNs(
      prefill_rows_, static_cast<std::uint32_t>(decodes_.size()) + guess_rows_);
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

// In turns of a round of the pipeline each, so that every cohort has both; unless one of
// the two has nothing to do.
void StepPlanner::Choose() {
  if (state_.suspects > 0) {
    const bool first = plan_.step.value() / state_.description->lag % 2 == 0;
    for (const bool probation : {first, !first}) {
      probation_ = probation;
      Assess();
      const bool runs = !decodes_.empty() || !chunks_.empty() || !openings_.empty();
      if (runs || !lacking_.empty() || FindStart().has_value() || load_.has_value()) return;
    }
    probation_ = false;
  }
  Assess();
}

void StepPlanner::Assess() {
  aside_.clear();
  decodes_.clear();
  finished_.clear();
  lacking_.clear();
  chunks_.clear();
  openings_.clear();
  due_later_ = false;
  free_blocks_ = state_.epoch->kv.pool().available() - ReservedBlocks();
  owed_blocks_ = 0;
  growth_.reset();
  budget_ = state_.MaxStepTokens();
  AssessDecodes();
  KeepToItlTarget();
  AssessPrefills();
}

// Somebody's next token waits for this step: prompts get what the target leaves,
// and always a little.
void StepPlanner::KeepToItlTarget() {
  constexpr std::uint32_t kLeastRows = 8;
  const std::uint32_t rows = state_.MaxStepTokens() - budget_;
  if (state_.options.itl_target_ns == 0 || rows == 0) return;
  budget_ = std::min(budget_, std::max(kLeastRows, state_.rates.PrefillRowsWithin(
                                                       state_.options.itl_target_ns, rows)));
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
  return parent.open() && parent.length.least >= branch.fork.length;
}

void StepPlanner::AssessDecodes() {
  for (const Slot slot : state_.running) {
    const Branch& branch = state_.branches[slot];
    const bool ours = IsFor(state_.RequestOf(branch));
    if (branch.state == BranchState::kDecode) {
      if (ours || branch.surely_finished()) {
        AssessDecode(slot);
      } else if (DueInThisStep(branch)) {
        aside_.push_back(slot);
      } else {
        due_later_ = true;
      }
    } else if (ours && IsBeamStep(branch)) {
      AssessBeamStep(slot);
    }
  }
}

void StepPlanner::AssessDecode(Slot slot) {
  const Branch& branch = state_.branches[slot];
  if (!DueInThisStep(branch)) {
    due_later_ |= !branch.surely_finished();
    // What it waits for is not for those after it, whose steps come first.
    if (branch.sat_out) KeepFor(branch);
  } else if (branch.surely_finished()) {
    finished_.push_back(slot);
  } else {
    const Request& request = state_.RequestOf(branch);
    const std::uint64_t lacks = LacksForNext(branch);
    if (lacks > Room(request)) {
      lacking_.push_back(slot);
      return;
    }
    Take(request, lacks);
    --budget_;
    decodes_.push_back(slot);
  }
}

void StepPlanner::AssessBeamStep(Slot slot) {
  const Branch& branch = state_.branches[slot];
  const Request& request = state_.RequestOf(branch);
  if (!branch.open()) {
    if (const std::optional<Opening> opening = FindOpening(slot, Room(request))) {
      TakeOpening(*opening);
    } else {
      lacking_.push_back(slot);
    }
    return;
  }
  const std::uint64_t lacks = state_.epoch->kv.Lacks(branch, branch.length.upper + 1);
  if (lacks > Room(request)) {
    lacking_.push_back(slot);
    return;
  }
  Take(request, lacks);
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
    const Request& request = state_.RequestOf(branch);
    if (IsBeamStep(branch) || !IsFor(request)) continue;
    const std::uint64_t room = decodes_lack && !request.undisturbed ? 0 : Room(request);
    if (branch.state == BranchState::kPrefill) AssessPrefill(slot, room);
    if (branch.state != BranchState::kPending) continue;
    const std::optional<Opening> opening = FindOpening(slot, room);
    if (opening.has_value()) TakeOpening(*opening);
  }
}

void StepPlanner::AssessPrefill(Slot slot, std::uint64_t room) {
  const KvLedger& kv = state_.epoch->kv;
  const Branch& branch = state_.branches[slot];
  const std::uint32_t begin = branch.length.upper;
  const std::uint32_t wanted =
      std::min({branch.prefill_tokens - begin, state_.options.max_chunk_tokens, budget_});
  const Request& request = state_.RequestOf(branch);
  const std::uint32_t rows = kv.Reach(branch, begin + wanted, room) - begin;
  const std::uint64_t takes = kv.Lacks(branch, begin + rows);
  Owe(request, kv.Lacks(branch, branch.prefill_tokens) - takes);
  if (rows > 0) {
    Take(request, takes);
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
  Owe(state_.RequestOf(branch), OpeningNeeds(opening));
  if (forks && !ParentIsReady(branch)) return std::nullopt;
  const std::uint32_t wanted = std::min({whole, state_.options.max_chunk_tokens, budget_});
  for (opening.rows = wanted; opening.rows > 0; opening.rows /= 2) {
    if (OpeningNeeds(opening) <= blocks) return opening;
  }
  if (wanted > 0 && InFirstRequest(branch) && !IsBeamStep(branch)) lacking_.push_back(slot);
  return std::nullopt;
}

void StepPlanner::TakeOpening(const Opening& opening) {
  const Request& request = state_.RequestOf(state_.branches[opening.slot]);
  if (!request.undisturbed) {
    const std::uint64_t takes = OpeningNeeds(opening);
    free_blocks_ -= takes;
    owed_blocks_ -= takes;
  }
  budget_ -= opening.rows;
  openings_.push_back(opening);
}

bool StepPlanner::SomeoneSatOut() const {
  return std::any_of(lacking_.begin(), lacking_.end(),
                     [this](Slot slot) { return state_.branches[slot].sat_out; });
}

std::uint64_t StepPlanner::ReservedBlocks() const {
  std::uint64_t reserved = 0;
  // Those that run undisturbed are the first in order.
  for (std::size_t at = 0; at < state_.running.size();) {
    const Request& request = state_.RequestOf(state_.branches[state_.running[at]]);
    if (!request.undisturbed) break;
    std::vector<BlockId> held;
    for (const Slot slot : request.branches) {
      for (const auto& table : state_.branches[slot].tables) {
        held.insert(held.end(), table.begin(), table.end());
      }
    }
    std::sort(held.begin(), held.end());
    const auto distinct = std::unique(held.begin(), held.end()) - held.begin();
    reserved += state_.MostBlocks(request) - static_cast<std::uint64_t>(distinct);
    at += request.branches.size();
  }
  return reserved;
}

std::uint64_t StepPlanner::Room(const Request& request) const {
  return request.undisturbed ? state_.epoch->kv.pool().available() : free_blocks_;
}

std::uint64_t StepPlanner::LacksForNext(const Branch& branch) const {
  const std::uint32_t end = std::min(branch.length.upper + 1, branch.length.max);
  return state_.epoch->kv.Lacks(branch, end);
}

void StepPlanner::KeepFor(const Branch& branch) {
  Take(state_.RequestOf(branch), std::min(free_blocks_, LacksForNext(branch)));
}

void StepPlanner::Take(const Request& request, std::uint64_t blocks) {
  if (!request.undisturbed) free_blocks_ -= blocks;
}

void StepPlanner::Owe(const Request& request, std::uint64_t blocks) {
  if (!request.undisturbed) owed_blocks_ += blocks;
}

void StepPlanner::AddGrowth(const Request& request, std::vector<Growing>& growth) const {
  constexpr std::uint64_t kMostTokens = 1024;  // as far ahead as a guess is worth anything
  if (request.undisturbed) return;             // reserved
  for (const Slot slot : request.branches) {
    const Branch& branch = state_.branches[slot];
    std::uint64_t held = 0;
    for (const auto& table : branch.tables) held += table.size();
    growth.push_back({.remaining = std::min(state_.PredictOutputs(branch), kMostTokens),
                      .own_blocks = held - std::min<std::uint64_t>(held, branch.shared_blocks)});
  }
}

// What the running requests are predicted to need at once beyond what they hold,
// with `request` among them.
std::uint64_t StepPlanner::GrowthWith(const Request& request) {
  const auto shorter = [](const Growing& a, const Growing& b) { return a.remaining < b.remaining; };
  if (state_.options.growth_permille == 0) return 0;
  if (!growth_.has_value()) {
    growth_.emplace();
    for (std::size_t at = 0; at < state_.running.size();) {
      const Request& running = state_.RequestOf(state_.branches[state_.running[at]]);
      AddGrowth(running, *growth_);
      at += running.branches.size();
    }
    std::sort(growth_->begin(), growth_->end(), shorter);
  }
  std::vector<Growing> all = *growth_;
  AddGrowth(request, all);
  std::inplace_merge(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(growth_->size()),
                     all.end(), shorter);
  return PeakGrowth(all, [this](std::uint64_t t) { return state_.epoch->kv.GrowthBlocks(t); });
}

// Another prompt that begins alike is about to be computed further than this
// one's match: to wait for it is cheaper than to compute it twice.
bool StepPlanner::PrefixIsBeingComputed(const Request& request,
                                        const KvLedger::Match& match) const {
  const Branch& first = state_.branches[request.branches.front()];
  return std::any_of(state_.running.begin(), state_.running.end(), [&](Slot slot) {
    const Branch& other = state_.branches[slot];
    return state_.epoch->kv.WillPublish(other, state_.RequestOf(other), first, request, match);
  });
}

// Blocks for all that the request knows: its first branch begins with the match,
// the others fork. All that it can come to need if it must run undisturbed.
std::uint64_t StepPlanner::StartNeeds(const Request& request, const KvLedger::Match& match) const {
  const KvLedger& kv = state_.epoch->kv;
  if (request.undisturbed) return match.pinned + state_.MostBlocks(request) - match.blocks;
  const auto first = state_.branches[request.branches.front()].tokens.size();
  std::uint64_t needs = match.pinned + kv.BlocksFor(first) - match.blocks;
  for (std::size_t i = 1; i < request.branches.size(); ++i) {
    const Branch& branch = state_.branches[request.branches[i]];
    needs += kv.ForkNeeds(kv.can_fork() ? branch.fork.length : 0, branch.tokens.size());
  }
  // Beams that are still to come begin at the end of the prompt.
  const std::uint64_t beams = request.width() - request.branches.size();
  return needs + beams * kv.ForkNeeds(request.prompt_tokens, request.prompt_tokens + 1);
}

bool StepPlanner::MustPoll() const {
  return state_.epoch->kv.copies_pending() && state_.epoch->in_flight.empty();
}

bool StepPlanner::WantsLoad(const KvLedger::Match& match) const {
  const std::uint64_t promised = state_.running.empty() ? 0 : owed_blocks_;
  return match.in_tiers > 0 && free_blocks_ >= match.pinned + match.in_tiers + promised;
}

void StepPlanner::Load(const Start& head) {
  const Request& request = state_.requests[head.request];
  state_.epoch->kv.Load(state_.branches[request.branches.front()], request, head.match);
  free_blocks_ -= head.match.in_tiers;
  state_.counters.blocks_in += head.match.in_tiers;
}

void StepPlanner::StoreAhead() {
  constexpr std::uint32_t kAtOnce = 8;
  KvLedger& kv = state_.epoch->kv;
  const BlockPool& pool = kv.pool();
  if (!kv.tiers().any() || pool.free() > pool.total() / 8 || free_blocks_ < 4 * kAtOnce) return;
  const std::uint32_t stored = kv.Store(kv.Oldest(kAtOnce), state_.RecomputeNs()).begun;
  free_blocks_ -= stored;
  state_.counters.blocks_out += stored;
}

std::optional<StepPlanner::Start> StepPlanner::TryStart(Slot slot) {
  const Request& request = state_.requests[slot];
  if (!IsFor(request) || (probation_ && state_.probation.has_value())) return std::nullopt;
  const bool full = state_.reserved_branches + request.width() > state_.MaxRunning();
  const bool head = slot == state_.waiting.head();
  if (full && !(head && state_.epoch->kv.tiers().any())) return std::nullopt;
  const KvLedger::Match match = state_.epoch->kv.FindPrefix(
      state_.branches[request.branches.front()], request, state_.RecomputeNs());
  const bool loads = head && WantsLoad(match);
  if (loads) load_ = Start{slot, match};
  if (loads || match.loading) {
    waits_for_prefix_ |= head;
    return std::nullopt;
  }
  if (full) return std::nullopt;
  // Alone it fits the pool (see admission), but for what copies hold.
  if (state_.running.empty() && !state_.epoch->kv.copies_pending()) return Start{slot, match};
  if (PrefixIsBeingComputed(request, match)) {
    waits_for_prefix_ |= slot == state_.waiting.head();
    return std::nullopt;
  }
  // All of it must fit beside what is promised already; otherwise several
  // half-computed prompts would wait for each other.
  const std::uint64_t growth =
      std::max(GrowthWith(request),
               std::uint64_t{state_.options.watermark_blocks} * state_.reserved_branches);
  if (free_blocks_ < owed_blocks_ + growth + StartNeeds(request, match)) return std::nullopt;
  return Start{slot, match};
}

std::optional<StepPlanner::Start> StepPlanner::FindStart() {
  constexpr std::size_t kCandidates = 4;  // bounds the work of a plan
  waits_for_prefix_ = false;
  load_.reset();
  if (state_.waiting.empty() || budget_ == 0 || !lacking_.empty()) return std::nullopt;
  if (std::optional<Start> start = TryStart(state_.waiting.head())) return start;
  if (state_.requests[state_.waiting.head()].bypassed >= state_.options.max_bypass) {
    return std::nullopt;
  }
  for (const Slot slot : state_.waiting.First(kCandidates)) {
    if (slot == state_.waiting.head()) continue;
    if (std::optional<Start> start = TryStart(slot)) return start;
  }
  return std::nullopt;
}

bool StepPlanner::WorthSending() {
  return state_.epoch->handles.drops_pending() || !decodes_.empty() || !chunks_.empty() ||
         !openings_.empty() || due_later_ || FindStart().has_value() || load_.has_value();
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
  for (const Slot slot : aside_) {
    const BranchHandle handle = state_.branches[slot].handle;
    plan_.ops.push_back(Skip{.branch = handle});
    state_.epoch->kv.AddSkip(plan_.step, handle);
    ++state_.counters.skips;
  }
}

// Openings come before any run, so that forks copy what earlier plans wrote; those
// from the prefix cache first, before a block that they count on is given away.
void StepPlanner::EmitOpenings() {
  for (const bool forks : {false, true}) {
    for (const Opening& opening : openings_) {
      if (state_.branches[opening.slot].fork.parent.has_value() == forks) EmitOpening(opening);
    }
  }
}

void StepPlanner::EmitOpening(const Opening& opening) {
  EpochState& epoch = *state_.epoch;
  Branch& branch = state_.branches[opening.slot];
  if (branch.fork.parent.has_value()) {
    branch.handle = epoch.handles.Take(opening.slot, plan_.step);
    branch.cohort = SmallestCohort();
    ++epoch.cohort_sizes[branch.cohort];
    const Branch& parent = state_.branches[*branch.fork.parent];
    state_.counters.block_copies += epoch.kv.Fork(parent, branch, state_.RequestOf(branch), plan_);
    ++state_.counters.forks;
    Opened(branch);
  } else {
    Open(opening.slot, opening.match);
  }
}

void StepPlanner::Opened(Branch& branch) {
  branch.opened = plan_.step;
  branch.state = BranchState::kPrefill;
  branch.prefill_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  state_.UpdateOwed(branch);
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
    state_.waiting.Charge(request.tenant,
                          (request.prompt_tokens - request.cached_tokens) * FairShare::kPromptCost);
  }
  request.was_open = true;
  Opened(branch);
}

void StepPlanner::EmitDecodes() {
  for (const Slot slot : finished_) {
    const Branch& branch = state_.branches[slot];
    runs_.push_back({.handle = branch.handle, .samples = true});
  }
  for (const Slot slot : decodes_) {
    Branch& branch = state_.branches[slot];
    branch.length.Send(1, 1);
    state_.epoch->kv.Grow(branch, branch.length.upper, plan_);
    branch.sat_out = false;
    runs_.push_back({.handle = branch.handle, .least = 1, .most = 1, .samples = true});
  }
}

bool StepPlanner::TrimBranches() {
  bool trimmed = false;
  for (const Slot slot : state_.running) {
    Branch& branch = state_.branches[slot];
    if (branch.open()) trimmed |= state_.epoch->kv.Trim(branch, plan_);
  }
  state_.counters.trims += trimmed;
  return trimmed;
}

// As far as rows, blocks and the branch's own end allow. Blocks that prompts begun
// still need, and the reserve for growth, are left alone.
std::uint32_t StepPlanner::AllowedGuesses(const Branch& branch) const {
  const std::uint32_t most =
      std::min({state_.MaxDraftTokens(), budget_, branch.length.max - branch.length.least});
  const std::uint64_t kept =
      owed_blocks_ + std::uint64_t{state_.options.watermark_blocks} * state_.reserved_branches;
  const std::uint64_t blocks = free_blocks_ > kept ? free_blocks_ - kept : 0;
  const std::uint32_t upper = branch.length.upper;
  const std::uint32_t end = std::min(upper + most, branch.length.max);
  // Beyond its maximum no position is ever written.
  if (state_.epoch->kv.Lacks(branch, end) <= blocks) return most;
  return state_.epoch->kv.Reach(branch, end, blocks) - upper;
}

void StepPlanner::EmitGuesses() {
  if (state_.MaxDraftTokens() == 0) return;
  SpeculationLoad load{.rows = static_cast<std::uint32_t>(decodes_.size()),
                       .tokens = decodes_.size() * std::uint64_t{Guesses::kSure},
                       .prefill_ns = prefill_rows_ * state_.rates.prefill_ns_per_token()};
  const bool nobody = !lacking_.empty() || state_.costs.Stale(load.rows);
  for (std::size_t i = 0; i < decodes_.size(); ++i) {
    Branch& branch = state_.branches[decodes_[i]];
    const std::uint32_t most = nobody ? 0 : AllowedGuesses(branch);
    const std::uint32_t depth =
        most == 0 ? 0 : ChooseDepth(branch.guesses, load, state_.costs, most);
    load.rows += depth;
    load.tokens += ExpectedTokens(branch.guesses.chance(), depth);
    EmitGuesses(branch, runs_[finished_.size() + i], depth);
  }
}

void StepPlanner::EmitGuesses(Branch& branch, PlannedRun& run, std::uint32_t depth) {
  if (branch.told_depth != depth) {
    const Speculate op{.branch = branch.handle, .depth = depth};
    state_.epoch->kv.AddSpeculate(plan_.step, op);
    plan_.ops.push_back(op);
    branch.told_depth = depth;
  }
  if (depth == 0) return;
  run.depth = depth;
  run.most += depth;
  budget_ -= depth;
  guess_rows_ += depth;
  branch.length.Send(0, depth);
  free_blocks_ -= state_.epoch->kv.Lacks(branch, branch.length.upper);
  state_.epoch->kv.Grow(branch, branch.length.upper, plan_);
}

void StepPlanner::EmitChunk(Slot slot, std::uint32_t rows) {
  Branch& branch = state_.branches[slot];
  const std::uint32_t begin = branch.length.upper;
  const std::uint32_t end = begin + rows;
  branch.length.Send(rows, rows);
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
                   .least = rows,
                   .most = rows,
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
  while (true) {
    const std::optional<Start> start = FindStart();
    if (load_.has_value()) {
      Load(*load_);  // and look again: it may have taken what another would begin with
    } else if (start.has_value()) {
      Begin(*start);
    } else {
      return;
    }
  }
}

// Opens the request's first branch; the others stay pending for now.
void StepPlanner::Begin(const Start& start) {
  const KvLedger& kv = state_.epoch->kv;
  const Request& request = state_.requests[start.request];
  const std::uint64_t needs = StartNeeds(request, start.match);
  if (const Slot head = state_.waiting.head(); head != start.request) {
    ++state_.requests[head].bypassed;
    ++state_.counters.bypasses;
  }
  growth_.reset();
  state_.OpenRequest(start.request);
  if (request.suspect) state_.probation = start.request;
  const Slot first = request.branches.front();
  Branch& branch = state_.branches[first];
  Open(first, start.match);

  const std::uint32_t rows = std::min(
      {branch.prefill_tokens - branch.length.upper, state_.options.max_chunk_tokens, budget_});
  const std::uint64_t takes = start.match.pinned + kv.Lacks(branch, branch.length.upper + rows);
  free_blocks_ -= request.undisturbed ? needs : takes;
  Owe(request, needs - takes);
  budget_ -= rows;
  EmitChunk(first, rows);
}

}  // namespace flotilla
