#include "scheduler/core/scheduler_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/core/admission.h"
#include "scheduler/core/invariants.h"
#include "scheduler/core/result_applier.h"

namespace flotilla::scheduler {

SchedulerCore::SchedulerCore(const CoreOptions& options, std::unique_ptr<OrderPolicy> policy)
    : state_(options, std::move(policy)) {}

absl::Status SchedulerCore::Ready(Epoch epoch, const ExecutorDescription& description) {
  if (epoch <= state_.last_epoch) return absl::OkStatus();
  if (absl::Status s = CheckDescription(description); !s.ok()) return s;
  if (state_.epoch.has_value()) state_.LoseEpoch();
  state_.last_epoch = epoch;
  state_.description = description;
  state_.forecast.Begin(description.prefill_ns_per_token, description.decode_ns_per_step);
  state_.costs = StepCosts(description.prefill_ns_per_token, description.decode_ns_per_step);
  state_.epoch.emplace(epoch, description, state_.options.prefix_cache);
  for (const TableIndex index : state_.requests.Indices()) {
    const Request& request = state_.requests[index];
    const Extent extent{.prompt_tokens = request.prompt_tokens,
                        .max_tokens = request.stop.max_tokens,
                        .width = request.width()};
    absl::Status fits = CheckFits(extent, description);
    if (fits.ok() && extent.width > state_.MaxRunning()) {
      fits = absl::InvalidArgumentError(
          absl::StrCat("the new worker group runs ", state_.MaxRunning(), " sequences at most"));
    }
    if (!fits.ok()) {
      state_.EndRequest(index, FinishReason::kError, absl::ResourceExhaustedError(fits.message()));
    }
  }
  return absl::OkStatus();
}

void SchedulerCore::Lost(Epoch epoch, absl::Span<const Step> started) {
  if (!state_.epoch.has_value() || state_.epoch->epoch != epoch) return;
  const std::optional<TableIndex> failed = Quarantine(state_).Blame(started);
  state_.LoseEpoch();
  if (!failed.has_value()) return;
  ++state_.counters.quarantine_failures;
  state_.EndRequest(*failed, FinishReason::kError,
                    absl::InternalError(
                        absl::StrCat("the worker group died ", state_.requests[*failed].crash_count,
                                     " times while it computed this request alone")));
}

void SchedulerCore::PlanRefused(std::int64_t now_ns, Epoch epoch, std::optional<Step> step,
                                absl::string_view why) {
  constexpr std::size_t kMostText = 256;  // of what the worker group says
  const bool current = state_.epoch.has_value() && state_.epoch->epoch == epoch;
  if (!current) return;
  std::vector<RefusedPlans::Candidate> operations = state_.OperationsOf(step);
  state_.LoseEpoch();
  ++state_.counters.plans_refused;
  if (operations.empty()) return;
  const RefusedPlans::Outcome outcome =
      state_.refused_plans.OnRefused(now_ns, std::move(operations));
  state_.counters.refused_failures += outcome.failed.size();
  state_.counters.refused_given_back += outcome.given_back.size();
  why = why.substr(0, kMostText);
  EndAll(outcome.failed, FinishReason::kError,
         absl::InternalError(
             absl::StrCat("the worker group refuses the operations of this request: ", why)));
  EndAll(outcome.given_back, FinishReason::kMoved,
         absl::UnavailableError(absl::StrCat("the worker group keeps refusing plans: ", why)));
}

void SchedulerCore::EndAll(const std::vector<RequestId>& ids, FinishReason reason,
                           const absl::Status& status) {
  for (const RequestId& id : ids) {
    const std::optional<TableIndex> index = state_.requests.Find(id);
    if (index.has_value()) state_.EndRequest(*index, reason, status);
  }
}

void SchedulerCore::Refuse(const TokenizedRequest& request, absl::Status status,
                           std::int64_t retry_after_ms) {
  ++state_.counters.refused;
  state_.events.push_back(RequestEnd{.request = request.id,
                                     .attempt = request.attempt,
                                     .status = std::move(status),
                                     .retry_after_ms = retry_after_ms,
                                     .usage = {}});
}

absl::Status SchedulerCore::CheckEntry(std::int64_t now_ns, const TokenizedRequest& request) const {
  // A replay was admitted before, here or elsewhere. It is not refused for a full queue or
  // a drain, because a client waits for the rest of its answer. There are never more replays than
  // requests that were admitted.
  const bool replay = request.attempt > Attempt(0);
  if (state_.draining && !replay) return absl::UnavailableError("the engine is draining");
  if (!state_.description.has_value()) {
    return absl::UnavailableError("no worker group is ready yet");
  }
  if (state_.requests.Find(request.id).has_value()) {
    return absl::AlreadyExistsError("a request of this id is being served");
  }
  if (absl::Status s = CheckServable(request, state_.options, *state_.description); !s.ok()) {
    return s;
  }
  if (request.deadline_ns.has_value() && *request.deadline_ns <= now_ns) {
    return absl::DeadlineExceededError("the deadline has passed");
  }
  return replay ? absl::OkStatus() : CheckQueue(request);
}

absl::Status SchedulerCore::CheckQueue(const TokenizedRequest& request) const {
  if (state_.waiting.size() >= state_.options.max_queued_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", state_.waiting.size(), " requests wait"));
  }
  if (state_.waiting.tokens() + request.prompt.size() >
      MaxQueuedTokens(state_.options, *state_.description)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", state_.waiting.tokens(), " prompt tokens wait"));
  }
  if (state_.options.max_wait_ns == 0) return absl::OkStatus();
  const std::int64_t wait_ns = state_.PredictWaitNs(state_.EntryOf(request));
  if (wait_ns > state_.options.max_wait_ns) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the wait would be about ", wait_ns / 1'000'000, " ms; the limit is ",
                     state_.options.max_wait_ns / 1'000'000, " ms"));
  }
  return absl::OkStatus();
}

void SchedulerCore::Submit(std::int64_t now_ns, TokenizedRequest request) {
  if (absl::Status s = CheckEntry(now_ns, request); !s.ok()) {
    const bool retry = absl::IsResourceExhausted(s) || absl::IsUnavailable(s);
    const bool known = retry && state_.description.has_value();
    const std::int64_t wait_ns = known ? state_.PredictWaitNs(state_.EntryOf(request)) : 0;
    Refuse(request, std::move(s), retry ? Forecast::RetryAfterMs(wait_ns) : 0);
    return;
  }
  EndComplete(Accept(std::move(request)));
}

// Puts the request into the queue. Its sequences know the prompt and the output prefix.
TableIndex SchedulerCore::Accept(TokenizedRequest request) {
  ++state_.counters.accepted;
  state_.prompts.Add(request.prompt.size());
  Request accepted;
  accepted.id = request.id;
  accepted.attempt = request.attempt;
  accepted.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  // The length of the tenant's name comes first, so that no two pairs of tenant and salt
  // make the same scope.
  accepted.cache_scope =
      absl::StrCat(request.tenant.size(), ":", request.tenant, request.cache_salt);
  if (!state_.options.prefix_cache) {  // tiers still keep the blocks of preempted requests
    accepted.cache_scope = absl::StrCat("#", request.id.incarnation, ":", request.id.counter);
  }
  accepted.sampling = request.sampling;
  accepted.stop = std::move(request.stop);
  accepted.logprobs = request.logprobs;
  accepted.expires_ns = request.deadline_ns;
  if (request.has_own_deadline()) accepted.deadline_ns = request.deadline_ns;
  accepted.priority = request.priority;
  accepted.arrival = state_.next_arrival++;
  accepted.protection = ProtectionAfter(0, state_.options.max_preemptions);
  accepted.answer_class = AnswerClass::Of(request.tenant, accepted.stop.max_tokens,
                                          !request.max_tokens_absent, accepted.prompt_tokens);
  accepted.tenant = state_.fair.Join(request.tenant);
  accepted.answers = request.sequences;
  accepted.crash_count = request.crash_count;
  if (request.beam.has_value()) {
    accepted.beam = std::make_unique<BeamGroup>(BeamSearch(*request.beam, accepted.stop.stop_tokens,
                                                           accepted.stop.max_tokens,
                                                           accepted.logprobs.output_top));
    accepted.beam->cancelled.assign(accepted.answers, false);
  }
  const TableIndex index = state_.requests.Insert(std::move(accepted));
  // Beam search begins with one sequence, which is the prompt.
  AddSequences(index, request.beam ? 1 : request.sequences, std::move(request.prompt),
               std::move(request.output_prefix));
  if (request.deadline_ns.has_value()) {
    state_.expiries.Push(index);
    state_.deadlines += request.has_own_deadline();
  }
  state_.events.push_back(Accepted{.request = request.id,
                                   .attempt = request.attempt,
                                   .expected_outputs = state_.ExpectedOutputsOf(index)});
  return index;
}

void SchedulerCore::AddSequences(TableIndex index, std::uint32_t count, std::vector<TokenId> prompt,
                                 std::vector<std::vector<TokenId>> prefixes) {
  Request& request = state_.requests[index];
  const std::uint32_t max = MaxPositions(request.prompt_tokens, request.stop.max_tokens);
  for (std::uint32_t i = 0; i < count; ++i) {
    Sequence sequence{.request = index, .index = SequenceIndex(i), .tokens = prompt};
    if (!prefixes.empty()) {
      sequence.tokens.insert(sequence.tokens.end(), prefixes[i].begin(), prefixes[i].end());
    }
    sequence.length.max = max;
    sequence.constrained = static_cast<bool>(request.sampling.constraint);
    const TableIndex at = state_.sequences.Insert(std::move(sequence));
    state_.sequences[at].self = at;
    request.sequences.push_back(at);
  }
  if (request.beam != nullptr) request.beam->ranked = request.sequences;
  if (request.crash_count > 0) Quarantine(state_).AddMoved(index);
  state_.Enqueue(index);
}

// Ends the sequences of a replay that are complete: the client already has their last
// token, and only their end was lost on the way.
void SchedulerCore::EndComplete(TableIndex index) {
  const StopRule stop = state_.requests[index].stop;
  for (const TableIndex at : std::vector<TableIndex>(state_.requests[index].sequences)) {
    const Sequence& sequence = state_.sequences[at];
    const std::uint32_t outputs = state_.OutputTokens(sequence);
    if (outputs == 0) continue;
    const bool stopped = std::binary_search(stop.stop_tokens.begin(), stop.stop_tokens.end(),
                                            sequence.tokens.back());
    if (!stopped && outputs < stop.max_tokens) continue;
    state_.EndSequence(at, stopped ? FinishReason::kStop : FinishReason::kLength, outputs);
  }
}

void SchedulerCore::Cancel(const CancelRequest& cancel) {
  const std::optional<TableIndex> index = state_.requests.Find(cancel.request);
  if (!index.has_value()) return;
  const Request& request = state_.requests[*index];
  if (request.beam != nullptr) {
    if (!cancel.sequence.has_value()) {
      state_.EndRequest(*index, FinishReason::kCancelled, absl::OkStatus());
    } else {
      CancelBeam(*index, *cancel.sequence);
    }
    return;
  }
  for (const TableIndex at : std::vector<TableIndex>(request.sequences)) {
    const Sequence& sequence = state_.sequences[at];
    if (cancel.sequence.has_value() && *cancel.sequence != sequence.index) continue;
    state_.EndSequence(at, FinishReason::kCancelled,
                       std::min(cancel.keep_tokens, state_.OutputTokens(sequence)));
  }
}

// Cancels one answer. The search goes on for the others.
void SchedulerCore::CancelBeam(TableIndex index, SequenceIndex number) {
  Request& request = state_.requests[index];
  std::vector<bool>& cancelled = request.beam->cancelled;
  if (number.value() >= cancelled.size() || cancelled[number.value()]) return;
  cancelled[number.value()] = true;
  state_.EmitSequenceEnd(request, number, FinishReason::kCancelled, 0);
  if (std::find(cancelled.begin(), cancelled.end(), false) == cancelled.end()) {
    state_.EndRequest(index, FinishReason::kCancelled, absl::OkStatus());
  }
}

std::int64_t SchedulerCore::PredictWaitNs(const TokenizedRequest& request) const {
  if (!state_.description.has_value()) return 0;
  return state_.PredictWaitNs(state_.EntryOf(request));
}

absl::Status SchedulerCore::Apply(const StepResult& result) {
  return ResultApplier(state_).Apply(result);
}

void SchedulerCore::ExpireDeadlines(std::int64_t now_ns) {
  while (!state_.expiries.empty()) {
    const TableIndex index = state_.expiries.top();
    if (*state_.requests[index].expires_ns > now_ns) return;
    state_.EndRequest(index, FinishReason::kDeadline,
                      absl::DeadlineExceededError("the deadline has passed"));
  }
}

// Ends the running requests that surely miss their deadline, so that their time goes to requests
// that can meet theirs.
void SchedulerCore::EndLate() {
  if (!state_.epoch.has_value() || state_.deadlines == 0) return;
  constexpr int kChecks = 16;  // limits the work of a plan
  std::vector<TableIndex> late;
  const std::int64_t step_ns = state_.forecast.steps().PredictNs(state_.RunningShape());
  int checks = 0;
  for (const TableIndex at : state_.running) {
    const Sequence& sequence = state_.sequences[at];
    const Request& request = state_.RequestOf(sequence);
    if (!request.deadline_ns.has_value() || sequence.state != SequenceState::kDecode) continue;
    const auto steps = static_cast<std::int64_t>(state_.ExpectedOutputs(sequence));
    if (state_.now_ns + steps * step_ns <= *request.deadline_ns || ++checks > kChecks) continue;
    const bool known = !late.empty() && late.back() == sequence.request;
    if (!known && state_.SurelyLate(request)) late.push_back(sequence.request);
  }
  for (const TableIndex index : late) {
    ++state_.counters.ended_late;
    state_.EndRequest(index, FinishReason::kDeadline,
                      absl::DeadlineExceededError("the deadline could not have been met"));
  }
}

// Ends the requests at the head of the queue that surely miss their deadline. Those that probably
// miss it go behind all others.
void SchedulerCore::DropLate() {
  if (!state_.epoch.has_value() || state_.deadlines == 0) return;
  while (const std::optional<TableIndex> head = state_.waiting.head()) {
    const TableIndex index = *head;
    const Request& request = state_.requests[index];
    if (request.was_admitted || request.reserves()) return;
    if (state_.SurelyLate(request)) {
      ++state_.counters.dropped_late;
      state_.EndRequest(index, FinishReason::kDeadline,
                        absl::DeadlineExceededError("the deadline could not have been met"));
    } else if (!request.demoted && state_.waiting.size() > 1 && state_.ExpectedLate(request)) {
      state_.Demote(index);
    } else {
      return;
    }
  }
}

PlanOutcome SchedulerCore::Plan(std::int64_t now_ns) {
  state_.now_ns = now_ns;
  ExpireDeadlines(now_ns);
  EndLate();
  DropLate();
  state_.UpdateRefusedPlans(now_ns);
  PlanOutcome outcome = StepPlanner(state_).Make();
  if (outcome.plan.has_value()) state_.LearnUsableBlocks();
  outcome.wake_ns = state_.refused_plans.wake_ns();
  if (!state_.expiries.empty()) {
    const std::int64_t expires_ns = *state_.requests[state_.expiries.top()].expires_ns;
    outcome.wake_ns = std::min(outcome.wake_ns.value_or(expires_ns), expires_ns);
  }
  return outcome;
}

void SchedulerCore::Abort(const absl::Status& status) {
  for (const TableIndex index : state_.requests.Indices()) {
    state_.EndRequest(index, FinishReason::kError, status);
  }
}

std::vector<Preemption> SchedulerCore::TakePreemptions() {
  return std::exchange(state_.preemptions, {});
}

std::vector<EngineEvent> SchedulerCore::TakeEvents() { return std::exchange(state_.events, {}); }

CoreSnapshot SchedulerCore::Snapshot() const {
  CoreSnapshot snapshot;
  EngineLoad& load = snapshot.load;
  load.running_requests =
      static_cast<std::uint32_t>(state_.requests.size() - state_.waiting.size());
  load.waiting_requests = static_cast<std::uint32_t>(state_.waiting.size());
  load.outstanding_tokens = state_.outstanding_tokens;
  load.draining = state_.draining;
  load.ready = state_.epoch.has_value();
  if (load.ready) {
    load.blocks_total = state_.epoch->kv.pool().total();
    load.blocks_used = state_.epoch->kv.pool().used();
    snapshot.blocks_cached = state_.epoch->kv.pool().cached();
    snapshot.tier_blocks = state_.epoch->kv.tiers().used();
    snapshot.in_flight = static_cast<std::uint32_t>(state_.epoch->in_flight.size());
  }
  snapshot.quarantined = static_cast<std::uint32_t>(state_.quarantine.requests.size());
  snapshot.counters = state_.counters;
  snapshot.candidates = static_cast<std::uint32_t>(state_.refused_plans.candidates());
  snapshot.waiting_tokens = state_.waiting.tokens();
  return snapshot;
}

std::vector<OpenSequenceView> SchedulerCore::OpenSequences() const {
  std::vector<OpenSequenceView> views;
  std::optional<TableIndex> request;
  std::uint32_t requests = 0;
  for (const TableIndex index : state_.RunningInOrder()) {
    const Sequence& sequence = state_.sequences[index];
    requests += request != sequence.request;
    request = sequence.request;
    if (!sequence.open()) continue;
    OpenSequenceView view{.handle = sequence.handle,
                          .request = state_.RequestOf(sequence).id,
                          .index = sequence.index,
                          .state = sequence.state,
                          .opened = sequence.opened,
                          .rank = requests - 1,
                          .length = sequence.length,
                          .tokens = sequence.tokens,
                          .tables = {}};
    if (state_.IsBeam(sequence)) view.tokens = view.tokens.subspan(0, sequence.sent_tokens);
    for (const auto& table : state_.epoch->kv.TablesOf(sequence)) view.tables.push_back(table);
    views.push_back(std::move(view));
  }
  std::sort(views.begin(), views.end(), [](const OpenSequenceView& a, const OpenSequenceView& b) {
    return a.handle < b.handle;
  });
  return views;
}

std::vector<SequenceStatus> SchedulerCore::SequenceStates() const {
  std::vector<SequenceStatus> states;
  for (const TableIndex index : state_.requests.Indices()) {
    const Request& request = state_.requests[index];
    for (const TableIndex at : request.sequences) {
      const Sequence& sequence = state_.sequences[at];
      states.push_back({.request = request.id,
                        .index = sequence.index,
                        .state = sequence.state,
                        .computed = sequence.open() ? sequence.length.computed : 0});
    }
  }
  std::sort(states.begin(), states.end(), [](const SequenceStatus& a, const SequenceStatus& b) {
    return a.request != b.request ? a.request < b.request : a.index < b.index;
  });
  return states;
}

std::uint64_t SchedulerCore::digest() const {
  return state_.epoch.has_value() ? state_.epoch->kv.digest() : 0;
}

absl::Status SchedulerCore::CheckInvariants() const {
  return flotilla::scheduler::CheckInvariants(state_);
}

}  // namespace flotilla::scheduler
