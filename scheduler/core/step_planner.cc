// The first half of StepPlanner: decides what the step does. step_planner_emit.cc writes
// the plan.
#include "scheduler/core/step_planner.h"

#include <algorithm>
#include <utility>

#include "scheduler/core/check.h"

namespace flotilla::scheduler {

PlanOutcome StepPlanner::Make() {
  if (!state_.epoch.has_value()) return {.stall = StallReason::kNotReady};
  EpochState& epoch = *state_.epoch;
  if (epoch.in_flight.size() > state_.description->lag) {
    return {.stall = StallReason::kPipelineFull};
  }
  plan_.epoch = epoch.epoch;
  plan_.step = Step(epoch.last_step.value() + 1);

  Choose();
  // When no result is outstanding, every length is exact, and no result can free a block. So the
  // last request in the order of the policy gives its blocks to the others. The planner first waits
  // for copies to or from tiers, because the blocks that they free may be enough.
  while (!short_of_blocks_.empty() && epoch.in_flight.empty() && !epoch.kv.copies_pending()) {
    if (!TrimSequences()) {
      const TableIndex last = state_.sequences[state_.running.back()].request;
      FLOTILLA_CORE_CHECK(!state_.requests[last].non_preemptible);
      state_.Preempt(last, state_.sequences[short_of_blocks_.front()].request);
    }
    Assess();
  }
  const bool copies = epoch.kv.copies_to_send() || MustPoll();
  if (AnyDeferred() && !copies) return {.stall = StallReason::kMemory};
  if (!WorthSending() && !copies) {
    if (!short_of_blocks_.empty()) return {.stall = StallReason::kMemory};
    return {.stall = state_.requests.size() == 0 ? StallReason::kIdle : StallReason::kResults};
  }

  epoch.handles.DropRetired(plan_);
  EmitDeferrals();
  EmitOpens();
  EmitDecodes();
  for (const PendingOpen& open : opens_) EmitChunk(open.index, open.rows);
  for (const Chunk& chunk : chunks_) EmitChunk(chunk.index, chunk.rows);
  EmitAdmissions();
  EmitDraftTokens();
  StoreAhead();
  epoch.kv.EmitCopies(plan_);

  plan_.digest = epoch.kv.digest();
  plan_.predicted_ns = state_.rates.PredictStepNs(
      prefill_rows_, static_cast<std::uint32_t>(decodes_.size()) + draft_rows_);
  std::sort(runs_.begin(), runs_.end(),
            [](const PlannedRun& a, const PlannedRun& b) { return a.handle < b.handle; });
  epoch.last_step = plan_.step;
  epoch.in_flight.push_back({.step = plan_.step, .runs = std::move(runs_)});
  ++state_.counters.plans;
  state_.counters.prefix_waits += waits_for_prefix_;
  state_.counters.evictions += epoch.kv.TakeEvictions();
  return {.plan = std::move(plan_)};
}

bool StepPlanner::DueInThisStep(const Sequence& sequence) const {
  const std::uint32_t lag = state_.description->lag;
  return plan_.step.value() % lag == sequence.micro_batch &&
         plan_.step.value() >= sequence.last_chunk.value() + lag;
}

// Steps of the isolated request and steps of the others alternate every `lag` steps, so
// that every micro-batch gets both kinds. If one of the two has nothing to do, the step is
// for the other.
void StepPlanner::Choose() {
  if (state_.quarantined > 0) {
    const bool first = plan_.step.value() / state_.description->lag % 2 == 0;
    for (const bool isolated : {first, !first}) {
      isolated_step_ = isolated;
      Assess();
      const bool runs = !decodes_.empty() || !chunks_.empty() || !opens_.empty();
      if (runs || !short_of_blocks_.empty() || FindAdmission().has_value() || load_.has_value()) {
        return;
      }
    }
    isolated_step_ = false;
  }
  Assess();
}

void StepPlanner::Assess() {
  for_other_steps_.clear();
  decodes_.clear();
  finished_.clear();
  short_of_blocks_.clear();
  chunks_.clear();
  opens_.clear();
  due_later_ = false;
  free_blocks_ = state_.epoch->kv.pool().available() - ReservedBlocks();
  promised_blocks_ = 0;
  expected_.reset();
  budget_ = state_.MaxStepTokens();
  AssessDecodes();
  KeepToItlTarget();
  AssessPrefills();
}

// When sequences decode in this step, prompts get the rows that the target leaves, and
// always at least kLeastRows.
void StepPlanner::KeepToItlTarget() {
  constexpr std::uint32_t kLeastRows = 8;
  const std::uint32_t rows = state_.MaxStepTokens() - budget_;
  if (state_.options.itl_target_ns == 0 || rows == 0) return;
  budget_ = std::min(budget_, std::max(kLeastRows, state_.rates.PrefillRowsWithin(
                                                       state_.options.itl_target_ns, rows)));
}

bool StepPlanner::InFirstRequest(const Sequence& sequence) const {
  return sequence.request == state_.sequences[state_.running.front()].request;
}

bool StepPlanner::IsBeamStep(const Sequence& sequence) const {
  if (!state_.IsBeam(sequence) || state_.OutputTokens(sequence) == 0) return false;
  const auto known = static_cast<std::uint32_t>(sequence.tokens.size());
  if (sequence.state == SequenceState::kPrefill) return sequence.length.scheduled_max + 1 == known;
  return sequence.state == SequenceState::kPending && sequence.fork.length + 1 == known &&
         ParentIsReady(sequence);
}

// Whether the positions that the sequence is to share are in plans already sent.
bool StepPlanner::ParentIsReady(const Sequence& sequence) const {
  if (!sequence.fork.parent.has_value() || !state_.epoch->kv.can_fork()) return false;
  const Sequence& parent = state_.sequences[*sequence.fork.parent];
  return parent.open() && parent.length.computed_min >= sequence.fork.length;
}

void StepPlanner::AssessDecodes() {
  for (const TableIndex index : state_.running) {
    const Sequence& sequence = state_.sequences[index];
    const bool ours = IsFor(state_.RequestOf(sequence));
    if (sequence.state == SequenceState::kDecode) {
      if (ours || sequence.surely_finished()) {
        AssessDecode(index);
      } else if (DueInThisStep(sequence)) {
        for_other_steps_.push_back(index);
      } else {
        due_later_ = true;
      }
    } else if (ours && IsBeamStep(sequence)) {
      AssessBeamStep(index);
    }
  }
}

void StepPlanner::AssessDecode(TableIndex index) {
  const Sequence& sequence = state_.sequences[index];
  if (!DueInThisStep(sequence)) {
    due_later_ |= !sequence.surely_finished();
    // Sequences after it in the order may run in earlier steps. They must not take the
    // blocks that it waits for.
    if (sequence.deferred) KeepFor(sequence);
  } else if (sequence.surely_finished()) {
    finished_.push_back(index);
  } else {
    const Request& request = state_.RequestOf(sequence);
    const std::uint64_t needed = BlocksNeededForNext(sequence);
    if (needed > Room(request)) {
      short_of_blocks_.push_back(index);
      return;
    }
    Take(request, needed);
    --budget_;
    decodes_.push_back(index);
  }
}

void StepPlanner::AssessBeamStep(TableIndex index) {
  const Sequence& sequence = state_.sequences[index];
  const Request& request = state_.RequestOf(sequence);
  if (!sequence.open()) {
    if (const std::optional<PendingOpen> open = FindOpen(index, Room(request))) {
      ScheduleOpen(*open);
    } else {
      short_of_blocks_.push_back(index);
    }
    return;
  }
  const std::uint64_t needed =
      state_.epoch->kv.BlocksNeeded(sequence, sequence.length.scheduled_max + 1);
  if (needed > Room(request)) {
    short_of_blocks_.push_back(index);
    return;
  }
  Take(request, needed);
  --budget_;
  chunks_.push_back({index, 1});
}

// A prompt that is short of blocks takes a smaller chunk or waits for the sequences
// before it. Only the first request in the order makes others give way, so it always
// advances.
void StepPlanner::AssessPrefills() {
  const bool decodes_are_short = !short_of_blocks_.empty();
  for (const TableIndex index : state_.running) {
    const Sequence& sequence = state_.sequences[index];
    const Request& request = state_.RequestOf(sequence);
    if (IsBeamStep(sequence) || !IsFor(request)) continue;
    const std::uint64_t room = decodes_are_short && !request.non_preemptible ? 0 : Room(request);
    if (sequence.state == SequenceState::kPrefill) AssessPrefill(index, room);
    if (sequence.state != SequenceState::kPending) continue;
    const std::optional<PendingOpen> open = FindOpen(index, room);
    if (open.has_value()) ScheduleOpen(*open);
  }
}

void StepPlanner::AssessPrefill(TableIndex index, std::uint64_t room) {
  const KvCacheManager& kv = state_.epoch->kv;
  const Sequence& sequence = state_.sequences[index];
  const std::uint32_t begin = sequence.length.scheduled_max;
  const std::uint32_t wanted =
      std::min({sequence.prefill_tokens - begin, state_.options.max_chunk_tokens, budget_});
  const Request& request = state_.RequestOf(sequence);
  const std::uint32_t rows = kv.LongestWithin(sequence, begin + wanted, room) - begin;
  const std::uint64_t takes = kv.BlocksNeeded(sequence, begin + rows);
  Promise(request, kv.BlocksNeeded(sequence, sequence.prefill_tokens) - takes);
  if (rows > 0) {
    Take(request, takes);
    budget_ -= rows;
    chunks_.push_back({index, rows});
  } else if (wanted > 0 && InFirstRequest(sequence)) {
    short_of_blocks_.push_back(index);
  }
}

std::uint64_t StepPlanner::OpenNeeds(const PendingOpen& open) const {
  const KvCacheManager& kv = state_.epoch->kv;
  const Sequence& sequence = state_.sequences[open.index];
  if (sequence.fork.parent.has_value()) {
    return kv.BlocksNeededByFork(sequence.fork.length, sequence.fork.length + open.rows);
  }
  return open.match.pinned + kv.BlocksFor(kv.PositionsOf(open.match) + open.rows) -
         open.match.blocks;
}

// Returns none while the parent is not far enough, or if rows or blocks are missing.
std::optional<StepPlanner::PendingOpen> StepPlanner::FindOpen(TableIndex index,
                                                              std::uint64_t blocks) {
  const KvCacheManager& kv = state_.epoch->kv;
  Sequence& sequence = state_.sequences[index];
  if (!kv.can_fork()) {
    sequence.fork = ForkPlan{};
    state_.UpdateOutstanding(sequence);
  }
  PendingOpen open{.index = index, .rows = 0, .match = {}};
  std::uint32_t begin = sequence.fork.length;
  const bool forks = sequence.fork.parent.has_value();
  if (!forks) {
    open.match = kv.FindPrefix(sequence, state_.RequestOf(sequence));
    begin = kv.PositionsOf(open.match);
  }
  const auto whole = static_cast<std::uint32_t>(sequence.tokens.size()) - begin;
  open.rows = whole;
  Promise(state_.RequestOf(sequence), OpenNeeds(open));
  if (forks && !ParentIsReady(sequence)) return std::nullopt;
  const std::uint32_t wanted = std::min({whole, state_.options.max_chunk_tokens, budget_});
  for (open.rows = wanted; open.rows > 0; open.rows /= 2) {
    if (OpenNeeds(open) <= blocks) return open;
  }
  if (wanted > 0 && InFirstRequest(sequence) && !IsBeamStep(sequence)) {
    short_of_blocks_.push_back(index);
  }
  return std::nullopt;
}

void StepPlanner::ScheduleOpen(const PendingOpen& open) {
  const Request& request = state_.RequestOf(state_.sequences[open.index]);
  if (!request.non_preemptible) {
    const std::uint64_t takes = OpenNeeds(open);
    free_blocks_ -= takes;
    promised_blocks_ -= takes;
  }
  budget_ -= open.rows;
  opens_.push_back(open);
}

bool StepPlanner::AnyDeferred() const {
  return std::any_of(short_of_blocks_.begin(), short_of_blocks_.end(),
                     [this](TableIndex index) { return state_.sequences[index].deferred; });
}

std::uint64_t StepPlanner::ReservedBlocks() const {
  std::uint64_t reserved = 0;
  // Non-preemptible requests are the first in order.
  for (std::size_t at = 0; at < state_.running.size();) {
    const Request& request = state_.RequestOf(state_.sequences[state_.running[at]]);
    if (!request.non_preemptible) break;
    std::vector<BlockId> held;
    for (const TableIndex index : request.sequences) {
      for (const auto& table : state_.sequences[index].tables) {
        held.insert(held.end(), table.begin(), table.end());
      }
    }
    std::sort(held.begin(), held.end());
    const auto distinct = std::unique(held.begin(), held.end()) - held.begin();
    reserved += state_.MostBlocks(request) - static_cast<std::uint64_t>(distinct);
    at += request.sequences.size();
  }
  return reserved;
}

std::uint64_t StepPlanner::Room(const Request& request) const {
  return request.non_preemptible ? state_.epoch->kv.pool().available() : free_blocks_;
}

std::uint64_t StepPlanner::BlocksNeededForNext(const Sequence& sequence) const {
  const std::uint32_t end = std::min(sequence.length.scheduled_max + 1, sequence.length.max);
  return state_.epoch->kv.BlocksNeeded(sequence, end);
}

void StepPlanner::KeepFor(const Sequence& sequence) {
  Take(state_.RequestOf(sequence), std::min(free_blocks_, BlocksNeededForNext(sequence)));
}

void StepPlanner::Take(const Request& request, std::uint64_t blocks) {
  if (!request.non_preemptible) free_blocks_ -= blocks;
}

void StepPlanner::Promise(const Request& request, std::uint64_t blocks) {
  if (!request.non_preemptible) promised_blocks_ += blocks;
}

void StepPlanner::AddExpected(const Request& request, std::vector<ExpectedOutput>& expected) const {
  constexpr std::uint64_t kMostTokens = 1024;  // no prediction is useful further ahead
  if (request.non_preemptible) return;         // its blocks are reserved
  for (const TableIndex index : request.sequences) {
    const Sequence& sequence = state_.sequences[index];
    std::uint64_t held = 0;
    for (const auto& table : sequence.tables) held += table.size();
    expected.push_back(
        {.remaining = std::min(state_.PredictOutputs(sequence), kMostTokens),
         .own_blocks = held - std::min<std::uint64_t>(held, sequence.shared_blocks)});
  }
}

// The blocks that the running requests and `request` are predicted to need at once beyond
// those that they hold.
std::uint64_t StepPlanner::PeakBlocksWith(const Request& request) {
  const auto shorter = [](const ExpectedOutput& a, const ExpectedOutput& b) {
    return a.remaining < b.remaining;
  };
  if (state_.options.expected_output_permille == 0) return 0;
  if (!expected_.has_value()) {
    expected_.emplace();
    for (std::size_t at = 0; at < state_.running.size();) {
      const Request& running = state_.RequestOf(state_.sequences[state_.running[at]]);
      AddExpected(running, *expected_);
      at += running.sequences.size();
    }
    std::sort(expected_->begin(), expected_->end(), shorter);
  }
  std::vector<ExpectedOutput> all = *expected_;
  AddExpected(request, all);
  std::inplace_merge(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(expected_->size()),
                     all.end(), shorter);
  return PeakBlocks(all, [this](std::uint64_t t) { return state_.epoch->kv.MostBlocksFor(t); });
}

// Whether another prompt with the same beginning is about to be computed further than this
// request's match. To wait for it is cheaper than to compute the blocks twice.
bool StepPlanner::PrefixIsBeingComputed(const Request& request,
                                        const KvCacheManager::Match& match) const {
  const Sequence& first = state_.sequences[request.sequences.front()];
  return std::any_of(state_.running.begin(), state_.running.end(), [&](TableIndex index) {
    const Sequence& other = state_.sequences[index];
    return state_.epoch->kv.WillPublish(other, state_.RequestOf(other), first, request, match);
  });
}

// The blocks for all tokens that the request knows: its first sequence begins with the
// match, and the others fork. For a non-preemptible request, all blocks that it can come
// to need.
std::uint64_t StepPlanner::AdmissionNeeds(const Request& request,
                                          const KvCacheManager::Match& match) const {
  const KvCacheManager& kv = state_.epoch->kv;
  if (request.non_preemptible) return match.pinned + state_.MostBlocks(request) - match.blocks;
  const auto first = state_.sequences[request.sequences.front()].tokens.size();
  std::uint64_t needs = match.pinned + kv.BlocksFor(first) - match.blocks;
  for (std::size_t i = 1; i < request.sequences.size(); ++i) {
    const Sequence& sequence = state_.sequences[request.sequences[i]];
    needs +=
        kv.BlocksNeededByFork(kv.can_fork() ? sequence.fork.length : 0, sequence.tokens.size());
  }
  // Beams that are still to come begin at the end of the prompt.
  const std::uint64_t beams = request.width() - request.sequences.size();
  return needs + beams * kv.BlocksNeededByFork(request.prompt_tokens, request.prompt_tokens + 1);
}

bool StepPlanner::MustPoll() const {
  return state_.epoch->kv.copies_pending() && state_.epoch->in_flight.empty();
}

bool StepPlanner::WantsLoad(const KvCacheManager::Match& match) const {
  const std::uint64_t promised = state_.running.empty() ? 0 : promised_blocks_;
  return match.in_tiers > 0 && free_blocks_ >= match.pinned + match.in_tiers + promised;
}

void StepPlanner::Load(const Admission& head) {
  const Request& request = state_.requests[head.request];
  state_.epoch->kv.Load(state_.sequences[request.sequences.front()], request, head.match);
  free_blocks_ -= head.match.in_tiers;
  state_.counters.blocks_in += head.match.in_tiers;
}

void StepPlanner::StoreAhead() {
  constexpr std::uint32_t kAtOnce = 8;
  KvCacheManager& kv = state_.epoch->kv;
  const BlockPool& pool = kv.pool();
  if (!kv.tiers().any() || pool.free() > pool.total() / 8 || free_blocks_ < 4 * kAtOnce) return;
  const std::uint32_t stored = kv.Store(kv.Oldest(kAtOnce), state_.RecomputeNs()).begun;
  free_blocks_ -= stored;
  state_.counters.blocks_out += stored;
}

std::optional<StepPlanner::Admission> StepPlanner::TryAdmit(TableIndex index) {
  const Request& request = state_.requests[index];
  if (!IsFor(request) || (isolated_step_ && state_.isolated_request.has_value())) {
    return std::nullopt;
  }
  const bool full = state_.reserved_sequences + request.width() > state_.MaxRunning();
  const bool head = index == state_.waiting.head();
  if (full && !(head && state_.epoch->kv.tiers().any())) return std::nullopt;
  const KvCacheManager::Match match = state_.epoch->kv.FindPrefix(
      state_.sequences[request.sequences.front()], request, state_.RecomputeNs());
  const bool loads = head && WantsLoad(match);
  if (loads) load_ = Admission{index, match};
  if (loads || match.loading) {
    waits_for_prefix_ |= head;
    return std::nullopt;
  }
  if (full) return std::nullopt;
  // Alone, the request fits the pool (see admission), except for what copies hold.
  if (state_.running.empty() && !state_.epoch->kv.copies_pending()) return Admission{index, match};
  if (PrefixIsBeingComputed(request, match)) {
    waits_for_prefix_ |= index == state_.waiting.head();
    return std::nullopt;
  }
  // All of the request must fit beside what is promised already. Otherwise several
  // half-computed prompts could wait for each other.
  const std::uint64_t expected =
      std::max(PeakBlocksWith(request),
               std::uint64_t{state_.options.watermark_blocks} * state_.reserved_sequences);
  if (free_blocks_ < promised_blocks_ + expected + AdmissionNeeds(request, match)) {
    return std::nullopt;
  }
  return Admission{index, match};
}

std::optional<StepPlanner::Admission> StepPlanner::FindAdmission() {
  constexpr std::size_t kCandidates = 4;  // limits the work of a plan
  waits_for_prefix_ = false;
  load_.reset();
  if (state_.waiting.empty() || budget_ == 0 || !short_of_blocks_.empty()) return std::nullopt;
  if (std::optional<Admission> admission = TryAdmit(state_.waiting.head())) return admission;
  if (state_.requests[state_.waiting.head()].bypassed >= state_.options.max_bypass) {
    return std::nullopt;
  }
  for (const TableIndex index : state_.waiting.First(kCandidates)) {
    if (index == state_.waiting.head()) continue;
    if (std::optional<Admission> admission = TryAdmit(index)) return admission;
  }
  return std::nullopt;
}

bool StepPlanner::WorthSending() {
  return state_.epoch->handles.drops_pending() || !decodes_.empty() || !chunks_.empty() ||
         !opens_.empty() || due_later_ || FindAdmission().has_value() || load_.has_value();
}

}  // namespace flotilla::scheduler
