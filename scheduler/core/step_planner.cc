// The first part of StepPlanner: what runs in the step. step_planner_rows.cc deals rows to prompts,
// and step_planner_emit.cc writes the plan.
#include "scheduler/core/step_planner.h"

#include <algorithm>
#include <utility>

#include "scheduler/core/admission.h"
#include "scheduler/core/check.h"

namespace flotilla::scheduler {

PlanOutcome StepPlanner::Make() {
  if (!state_.epoch.has_value()) return {.stall = StallReason::kNotReady};
  EpochState& epoch = *state_.epoch;
  if (epoch.in_flight.size() > state_.description->lag) {
    return {.stall = StallReason::kPipelineFull};
  }
  if (IsolatedStepInPipeline()) return {.stall = StallReason::kResults};
  plan_.epoch = epoch.epoch;
  plan_.step = Step(epoch.last_step.value() + 1);

  if (epoch.kv.has_runs()) ShortenForks();
  if (!epoch.kv.can_fork()) ForgetForks();
  Choose();
  if (isolated_.has_value() && state_.description->lag > 1 && !epoch.in_flight.empty()) {
    return {.stall = StallReason::kResults};
  }
  // When no result is outstanding, every length is exact, and no result can free a block. So the
  // last request in order gives its blocks to the others. The planner first waits for copies to or
  // from tiers that free blocks, because these may be enough.
  while (epoch.in_flight.empty() && epoch.kv.HeldByCopies() == 0) {
    const bool is_short = !short_of_blocks_.empty();
    const std::optional<TableIndex> victim = is_short ? order_.back() : VictimOfHead();
    if (!victim.has_value()) break;
    if (!TrimSequences()) {
      const TableIndex last = state_.sequences[*victim].request;
      FLOTILLA_CORE_CHECK(!state_.requests[last].non_preemptible());
      state_.Preempt(last, is_short ? state_.sequences[short_of_blocks_.front()].request
                                    : *state_.waiting.head());
    }
    Choose();
  }
  if (short_of_blocks_.empty() && !epoch.in_flight.empty() && VictimOfHead().has_value()) {
    return {.stall = StallReason::kMemory};
  }
  const bool copies = epoch.kv.copies_to_send() || MustPoll();
  if (AnyDeferred() && !copies) return {.stall = StallReason::kMemory};
  if (!WorthSending() && !copies) {
    if (!short_of_blocks_.empty()) return {.stall = StallReason::kMemory};
    if (state_.requests.size() == 0) return {.stall = StallReason::kIdle};
    const bool held_back = epoch.in_flight.empty() && state_.refused_plans.wake_ns().has_value();
    return {.stall = held_back ? StallReason::kHeldBack : StallReason::kResults};
  }

  epoch.kv.EmitReleases(plan_);
  epoch.handles.DropRetired(plan_);
  EmitDeferrals();
  EmitOpens();
  EmitDecodes();
  for (const PendingOpen& open : opens_) EmitChunk(open.index, open.rows);
  for (const Chunk& chunk : chunks_) EmitChunk(chunk.index, chunk.rows);
  DealRows();
  EmitDraftTokens();
  plan_.predicted_ns = state_.forecast.steps().QuantileNs(shape_, 900);
  LoadAhead();
  StoreAhead();
  epoch.kv.EmitCopies(plan_);

  plan_.digest = epoch.kv.digest();
  std::sort(runs_.begin(), runs_.end(),
            [](const PlannedRun& a, const PlannedRun& b) { return a.handle < b.handle; });
  epoch.last_step = plan_.step;
  epoch.in_flight.push_back({.step = plan_.step,
                             .isolated = isolated_.has_value(),
                             .runs = std::move(runs_),
                             .shape = shape_});
  ReleaseFronts();
  ++state_.counters.plans;
  state_.counters.prefix_waits += waits_for_prefix_;
  state_.counters.evictions += epoch.kv.TakeEvictions();
  return {.plan = std::move(plan_)};
}

// Sequences that were to fork compute all of their rows, so what may run is chosen with that in
// mind.
void StepPlanner::ForgetForks() {
  for (const TableIndex index : state_.running) {
    Sequence& sequence = state_.sequences[index];
    if (sequence.open() || !sequence.fork.parent.has_value()) continue;
    sequence.fork = ForkPlan{};
    state_.UpdateOutstanding(sequence);
  }
}

void StepPlanner::ShortenForks() {
  const KvCacheManager& kv = state_.epoch->kv;
  for (const TableIndex index : state_.running) {
    Sequence& sequence = state_.sequences[index];
    if (sequence.open() || !sequence.fork.parent.has_value()) continue;
    const Sequence& parent = state_.sequences[*sequence.fork.parent];
    if (!parent.open()) continue;
    const std::uint32_t length = kv.ForkLength(parent, sequence.fork.length);
    if (length == sequence.fork.length) continue;
    if (length > 0 && kv.CanFork(parent, length)) {
      sequence.fork.length = length;
    } else {
      sequence.fork = ForkPlan{};
    }
    state_.UpdateOutstanding(sequence);
  }
}

// In a pipeline several steps are under way at once. A death in an isolated step says whose rows
// it was only if no other step was.
bool StepPlanner::IsolatedStepInPipeline() const {
  const std::deque<PlanInFlight>& plans = state_.epoch->in_flight;
  return state_.description->lag > 1 && !plans.empty() && plans.back().isolated;
}

bool StepPlanner::DueInThisStep(const Sequence& sequence) const {
  const std::uint32_t lag = state_.description->lag;
  return plan_.step.value() % lag == sequence.micro_batch &&
         plan_.step.value() >= sequence.last_chunk.value() + lag;
}

// Isolated and shared steps alternate every `lag` steps, so that every micro-batch gets both
// kinds. If one of the two has nothing to do, the step is of the other kind. Rows that are likely
// to run for nothing run last.
void StepPlanner::Choose() {
  isolated_.reset();
  if (!state_.quarantine.requests.empty()) {
    const bool first = plan_.step.value() / state_.description->lag % 2 == 0;
    for (const bool isolated : {first, !first}) {
      if (isolated ? ChooseIsolated(/*backs_off=*/false) : (Assess(), AnythingToRun())) return;
    }
    if (ChooseIsolated(/*backs_off=*/true)) return;
  }
  Assess();
}

bool StepPlanner::ChooseIsolated(bool backs_off) {
  const Quarantine quarantine(state_);
  for (const TableIndex index : quarantine.InTurn()) {
    if (!CanIsolate(index) || (!backs_off && quarantine.BacksOff(index))) continue;
    isolated_ = index;
    Assess();
    if (AnythingToRun()) return true;
  }
  isolated_.reset();
  return false;
}

bool StepPlanner::CanIsolate(TableIndex index) const {
  const Request& request = state_.requests[index];
  if (!request.admitted) return request.starts_isolated && !request.held_back;
  return std::any_of(request.sequences.begin(), request.sequences.end(),
                     [this](TableIndex at) { return HasFatalRows(state_.sequences[at]); });
}

// Whether the next row of the sequence is fatal and can run in this step.
bool StepPlanner::HasFatalRows(const Sequence& sequence) const {
  if (!sequence.held() || sequence.next_row() >= sequence.fatal.end) return false;
  switch (sequence.state) {
    case SequenceState::kPending:
      return !sequence.fork.parent.has_value() || ParentIsReady(sequence);
    case SequenceState::kPrefill:
      return true;
    case SequenceState::kDecode:
      return DueInThisStep(sequence) && !sequence.surely_finished();
    default:
      return false;
  }
}

bool StepPlanner::IsInThisStep(const Sequence& sequence) const {
  if (isolated_.has_value()) return sequence.request == *isolated_ && HasFatalRows(sequence);
  return !sequence.held();
}

bool StepPlanner::AnythingToRun() {
  return !decodes_.empty() || !chunks_.empty() || !opens_.empty() || prompt_can_run_ ||
         !short_of_blocks_.empty() || CanAdmit() || load_.has_value();
}

void StepPlanner::Assess() {
  order_ = state_.RunningInOrder();
  for_other_steps_.clear();
  backing_off_.clear();
  decodes_.clear();
  finished_.clear();
  short_of_blocks_.clear();
  chunks_.clear();
  opens_.clear();
  prompts_.clear();
  due_later_ = prompt_can_run_ = false;
  // Copies may hold some of the reserved blocks for a while: those of a sequence that has ended.
  available_blocks_ = state_.epoch->kv.pool().available();
  CountReserved();
  free_blocks_ = available_blocks_ - std::min(available_blocks_, reserved_blocks_);
  shape_ = {};
  target_ = {};
  promised_blocks_ = 0;
  expected_.reset();
  budget_ = state_.MaxStepTokens();
  constraint_bytes_ = opened_tokens_ = 0;
  AssessDecodes();
  KeepToItlTarget();
  AssessPrompts();
}

// When sequences decode in this step, prompts get the rows that the target leaves, and always at
// least kLeastChunkRows. Without a target of its own, the step may take a multiple of what the
// decodes take alone. The chunks of an isolated step are those of the fatal one.
void StepPlanner::KeepToItlTarget() {
  if (budget_ == state_.MaxStepTokens() || isolated_.has_value()) return;
  const StepTimeModel& steps = state_.forecast.steps();
  if (state_.options.itl_target_ns == 0 && state_.options.itl_permille > 0 && steps.steps() > 0) {
    const bool decodes_alone = shape_.decode_rows > 0 && shape_.prefill_rows == 0;
    if (decodes_alone && steps.NeedsDecodesAlone() && !DecodesAloneInFlight()) {
      budget_ = 0;
      return;
    }
  }
  target_ = state_.ChunkTarget(DecodesToCome());
  if (target_.ns == 0) return;
  const std::uint32_t rows = steps.RowsWithin(target_, shape_, 0, budget_);
  budget_ = std::min(budget_, std::max(rows, CoreState::kLeastChunkRows));
}

bool StepPlanner::DecodesAloneInFlight() const {
  const std::deque<PlanInFlight>& plans = state_.epoch->in_flight;
  return std::any_of(plans.begin(), plans.end(), [](const PlanInFlight& plan) {
    return plan.shape.prefill_rows == 0 && plan.shape.decode_rows > 0;
  });
}

// The decodes of a step once all requests that are here decode, as far as there are places for
// them. While few decode and many prompts wait, steps with nothing but these few decodes are
// short; a target that followed them would make all others wait. Where requests have deadlines,
// those that wait may never start, so they do not count.
StepShape StepPlanner::DecodesToCome() const {
  const std::size_t waiting = state_.deadlines == 0 ? state_.waiting.size() : 0;
  const std::uint64_t all = std::min<std::uint64_t>(state_.MaxRunning(), order_.size() + waiting);
  const std::uint64_t mine = shape_.decode_rows;
  const std::uint64_t to_come = std::max(mine, all / state_.description->lag);
  return {.decode_rows = to_come,
          .decode_context = shape_.decode_context / std::max<std::uint64_t>(mine, 1) * to_come};
}

// Rows cost more the longer their context is. The first chunks of a step, the first request in
// order and one whose rows went to shorter ones get kLeastChunkRows all the same, so that they
// advance.
std::uint32_t StepPlanner::RowsOfTarget(std::uint32_t begin, std::uint32_t rows, bool first) const {
  if (target_.ns == 0 || rows == 0) return rows;
  const std::uint32_t within = state_.forecast.steps().RowsWithin(target_, shape_, begin, rows);
  const bool advances = first || shape_.prefill_rows < CoreState::kLeastChunkRows;
  return advances ? std::max(within, std::min(rows, CoreState::kLeastChunkRows)) : within;
}

bool StepPlanner::InFirstRequest(const Sequence& sequence) const {
  return sequence.request == state_.sequences[order_.front()].request;
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
  for (const TableIndex index : order_) {
    const Sequence& sequence = state_.sequences[index];
    const bool ours = IsInThisStep(sequence);
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
  // Rows that run for nothing delay only others.
  if (decodes_.empty() && chunks_.empty()) {
    for (const TableIndex index : std::exchange(backing_off_, {})) TakeRow(index);
  }
  // Prompts must not take the blocks that the rest waits for.
  for (const TableIndex index : backing_off_) {
    if (state_.sequences[index].deferred) KeepFor(state_.sequences[index]);
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
  } else if (sequence.backs_off()) {
    backing_off_.push_back(index);
  } else {
    TakeRow(index);
  }
}

void StepPlanner::TakeRow(TableIndex index) {
  const Sequence& sequence = state_.sequences[index];
  const Request& request = state_.RequestOf(sequence);
  const std::uint64_t needed = BlocksNeededForNext(sequence);
  if (needed > Room(request)) {
    short_of_blocks_.push_back(index);
    return;
  }
  Take(request, needed);
  --budget_;
  shape_.AddDecode(sequence.length.scheduled_max);
  decodes_.push_back(index);
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
  shape_.AddChunk(sequence.length.scheduled_max, 1);
  chunks_.push_back({index, 1});
}

// A prompt that is short of blocks takes a smaller chunk or waits for the sequences
// before it. Only the first request in the order makes others give way, so it always
// advances: sequences of others that open leave it the blocks of its next rows.
void StepPlanner::AssessPrompts() {
  decodes_are_short_ = !short_of_blocks_.empty();
  std::uint64_t first_needs = 0;
  for (const TableIndex index : order_) {
    const Sequence& sequence = state_.sequences[index];
    if (IsBeamStep(sequence)) continue;
    if (sequence.state == SequenceState::kPrefill) AssessPrompt(index);
    if (!prompts_.empty() && prompts_.back() == index && InFirstRequest(sequence)) {
      first_needs += BlocksNeededForNext(sequence);
    }
    if (sequence.state != SequenceState::kPending) continue;
    std::uint64_t room = PromptRoom(state_.RequestOf(sequence));
    if (!InFirstRequest(sequence)) room -= std::min(room, first_needs);
    const std::optional<PendingOpen> open = FindOpen(index, room);
    if (open.has_value()) ScheduleOpen(*open);
  }
}

void StepPlanner::AssessPrompt(TableIndex index) {
  const Sequence& sequence = state_.sequences[index];
  const Request& request = state_.RequestOf(sequence);
  Promise(request, state_.epoch->kv.BlocksToReach(sequence, sequence.prefill_tokens));
  if (budget_ == 0 || !IsInThisStep(sequence)) return;
  if (RowsWithin(sequence, 1, PromptRoom(request)) > 0) {
    prompts_.push_back(index);
    prompt_can_run_ = true;
  } else if (InFirstRequest(sequence)) {
    short_of_blocks_.push_back(index);
  }
}

std::uint64_t StepPlanner::PromptRoom(const Request& request) const {
  return decodes_are_short_ && !request.non_preemptible() ? 0 : Room(request);
}

std::uint32_t StepPlanner::RowsLeft(const Sequence& sequence) const {
  const std::uint32_t begin = sequence.length.scheduled_max;
  return std::min(sequence.prefill_tokens, sequence.StepEnd(begin)) - begin;
}

std::uint32_t StepPlanner::RowsWithin(const Sequence& sequence, std::uint32_t rows,
                                      std::uint64_t blocks) const {
  const std::uint32_t begin = sequence.length.scheduled_max;
  const std::uint32_t end = begin + std::min(rows, RowsLeft(sequence));
  return state_.epoch->kv.LongestWithin(sequence, end, blocks) - begin;
}

// The most rows of one prompt in this step. In an isolated step the chunks are those of the fatal
// one.
std::uint32_t StepPlanner::MaxChunk() const {
  return isolated_.has_value() ? state_.MaxStepTokens() : state_.options.max_chunk_tokens;
}

std::uint64_t StepPlanner::OpenNeeds(const PendingOpen& open) const {
  const KvCacheManager& kv = state_.epoch->kv;
  const Sequence& sequence = state_.sequences[open.index];
  if (sequence.fork.parent.has_value()) {
    return kv.BlocksFrom(sequence.fork.length, sequence.fork.length + open.rows);
  }
  return kv.BlocksToOpen(open.match, kv.PositionsOf(open.match) + open.rows) +
         CountedOn(open.match);
}

// Returns none while the parent is not far enough, or if rows or blocks are missing.
std::optional<StepPlanner::PendingOpen> StepPlanner::FindOpen(TableIndex index,
                                                              std::uint64_t blocks) {
  KvCacheManager& kv = state_.epoch->kv;
  const Sequence& sequence = state_.sequences[index];
  PendingOpen open{.index = index, .begin = 0, .rows = 0, .match = {}};
  std::uint32_t begin = sequence.fork.length;
  const bool forks = sequence.fork.parent.has_value();
  if (!forks) {
    open.match = kv.FindPrefix(sequence, state_.RequestOf(sequence));
    begin = kv.PositionsOf(open.match);
  }
  open.begin = begin;
  const auto whole = static_cast<std::uint32_t>(sequence.tokens.size()) - begin;
  open.rows = whole;
  Promise(state_.RequestOf(sequence), OpenNeeds(open));
  if (forks && !ParentIsReady(sequence)) return std::nullopt;
  if (!IsInThisStep(sequence)) return std::nullopt;
  if (!forks && !HasRoomInPlan(state_.RequestOf(sequence))) return std::nullopt;
  const std::uint32_t wanted =
      RowsOfTarget(begin, std::min({whole, sequence.StepEnd(begin) - begin, MaxChunk(), budget_}),
                   InFirstRequest(sequence));
  for (open.rows = wanted; open.rows > 0; open.rows /= 2) {
    if (OpenNeeds(open) <= blocks) return open;
  }
  if (wanted > 0 && InFirstRequest(sequence) && !IsBeamStep(sequence)) {
    short_of_blocks_.push_back(index);
  }
  return std::nullopt;
}

std::size_t StepPlanner::BytesInPlan(const SamplingParams& sampling) {
  const DryBreakers& breakers = sampling.dry_breakers;
  std::size_t tokens = breakers.heads.size() + breakers.tail_of.size();
  for (const std::vector<TokenId>& tail : breakers.tails) tokens += tail.size();
  return sampling.constraint.text.size() + tokens * sizeof(TokenId);
}

std::size_t StepPlanner::TokensInPlan(const Request& request) const {
  return state_.sequences[request.sequences.front()].tokens.size();
}

void StepPlanner::CountInPlan(const Request& request) {
  constraint_bytes_ += BytesInPlan(request.sampling);
  opened_tokens_ += TokensInPlan(request);
}

bool StepPlanner::HasRoomInPlan(const Request& request) const {
  const std::size_t bytes = BytesInPlan(request.sampling), tokens = TokensInPlan(request);
  const bool has_room = bytes == 0 || constraint_bytes_ == 0 ||
                        constraint_bytes_ + bytes <= state_.options.max_constraint_bytes;
  return has_room &&
         (opened_tokens_ == 0 || opened_tokens_ + tokens <= state_.options.max_opened_tokens);
}

void StepPlanner::ScheduleOpen(const PendingOpen& open) {
  const Sequence& sequence = state_.sequences[open.index];
  const Request& request = state_.RequestOf(sequence);
  if (!sequence.fork.parent.has_value()) {
    CountInPlan(request);
  }
  const std::uint64_t takes = OpenNeeds(open);
  Take(request, takes);
  Redeem(request, takes);
  budget_ -= open.rows;
  shape_.AddChunk(open.begin, open.rows);
  opens_.push_back(open);
}

bool StepPlanner::AnyDeferred() const {
  return std::any_of(short_of_blocks_.begin(), short_of_blocks_.end(),
                     [this](TableIndex index) { return state_.sequences[index].deferred; });
}

// Protected requests are the first in order.
void StepPlanner::CountReserved() {
  kept_blocks_ = reserved_blocks_ = 0;
  reserved_requests_ = false;
  for (std::size_t at = 0; at < state_.running.size();) {
    const Request& request = state_.RequestOf(state_.sequences[state_.running[at]]);
    if (!request.reserves()) break;
    reserved_requests_ = true;
    std::vector<const Sequence*> sequences;
    for (const TableIndex index : request.sequences) sequences.push_back(&state_.sequences[index]);
    const std::uint64_t all = ReservationOf(request);
    std::uint64_t secure = state_.epoch->kv.SecureBlocks(sequences);
    if (const Sequence* first = state_.OpensFirst(request)) {
      secure += state_.epoch->kv.FindPrefix(*first, request).shared();
    }
    const std::uint64_t more = all - std::min(all, secure);
    if (request.non_preemptible()) kept_blocks_ += more;
    reserved_blocks_ += more;
    at += request.sequences.size();
  }
}

std::uint64_t StepPlanner::ReservationOf(const Request& request) const {
  if (request.non_preemptible()) return state_.MostBlocks(request);
  constexpr std::uint32_t kMore = 16;  // positions that the next plans may add
  std::uint32_t outputs = 0;
  for (const TableIndex index : request.sequences) {
    const Sequence& sequence = state_.sequences[index];
    const auto known = std::max<std::uint32_t>(static_cast<std::uint32_t>(sequence.tokens.size()),
                                               sequence.length.allocated);
    outputs = std::max({outputs, sequence.forecast.upper, known + kMore - request.prompt_tokens});
  }
  const Extent extent{.prompt_tokens = request.prompt_tokens,
                      .max_tokens = std::min(outputs, request.stop.max_tokens),
                      .width = request.width()};
  return flotilla::scheduler::MostBlocks(extent, *state_.description);
}

std::uint64_t StepPlanner::Room(const Request& request) const {
  if (request.non_preemptible()) return available_blocks_;
  if (!request.reserves()) return free_blocks_;
  return available_blocks_ - std::min(available_blocks_, kept_blocks_);
}

std::uint64_t StepPlanner::BlocksNeededForNext(const Sequence& sequence) const {
  const std::uint32_t end = std::min(sequence.length.scheduled_max + 1, sequence.length.max);
  return state_.epoch->kv.BlocksNeeded(sequence, end);
}

void StepPlanner::KeepFor(const Sequence& sequence) {
  const Request& request = state_.RequestOf(sequence);
  Take(request, std::min(Room(request), BlocksNeededForNext(sequence)));
}

void StepPlanner::Take(const Request& request, std::uint64_t blocks) {
  available_blocks_ -= blocks;
  if (!request.reserves()) free_blocks_ -= blocks;
  if (request.non_preemptible()) kept_blocks_ -= std::min(kept_blocks_, blocks);
  // Blocks of protected requests were reserved, except for those that one takes beyond its
  // forecast.
  free_blocks_ = std::min(free_blocks_, available_blocks_);
}

void StepPlanner::Promise(const Request& request, std::uint64_t blocks) {
  if (!request.reserves()) promised_blocks_ += blocks;
}

void StepPlanner::Redeem(const Request& request, std::uint64_t blocks) {
  if (!request.reserves()) promised_blocks_ -= std::min(promised_blocks_, blocks);
}

bool StepPlanner::WorthSending() {
  return state_.epoch->handles.drops_pending() || due_later_ || AnythingToRun();
}

// Requests of lower classes give way one by one, so the head never takes more than it needs. It
// takes nothing if all of them together are not enough, nor from a tenant whose turn is before that
// of its own.
std::optional<TableIndex> StepPlanner::VictimOfHead() {
  const std::optional<TableIndex> head = state_.waiting.head();
  if (isolated_.has_value() || !head.has_value() || budget_ == 0) return std::nullopt;
  const Request& request = state_.requests[*head];
  const auto gives_way = [&](TableIndex index) {
    const Request& other = state_.RequestOf(state_.sequences[index]);
    return !other.reserves() && request.order.group < other.order.group &&
           MayTakeFrom(other, request);
  };
  const auto last = std::find_if(order_.rbegin(), order_.rend(), gives_way);
  if (last == order_.rend()) return std::nullopt;
  const Attempt attempt = TryAdmit(*head);
  load_.reset();
  if (!attempt.blocked || !HasRoomInPlan(request)) return std::nullopt;
  std::uint64_t places = state_.MaxRunning() - state_.reserved_sequences;
  std::uint64_t blocks = free_blocks_;
  for (const TableIndex index : order_) {
    if (!gives_way(index)) continue;
    ++places;
    blocks += state_.epoch->kv.OwnBlocks(state_.sequences[index]);
  }
  const bool enough = places >= request.width() && blocks >= AdmissionNeeds(request, {});
  return enough ? std::optional<TableIndex>(*last) : std::nullopt;
}

}  // namespace flotilla::scheduler
