// SchedulerCore: the scheduler as a pure state machine.
//
// Events and the time go in; plans and engine events come out. The core reads no
// clock, has no threads, writes no log and makes no decision by floating point
// or by the order of a hash container: the same options and the same calls give
// byte-identical plans. An engine loop (scheduler/server) or a simulation owns it and
// calls it from one thread at a time.
//
//   SchedulerCore core(options);
//   core.Ready(epoch, description);
//   core.Submit(now, request);
//   while (auto outcome = core.Plan(now); outcome.plan) executor.Execute(*outcome.plan);
//   core.Apply(result);                    // in step order
//   Deliver(core.TakeEvents());
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/types/engine.h"
#include "common/types/event.h"
#include "common/types/executor.h"
#include "common/types/request.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/options.h"
#include "scheduler/core/policy.h"
#include "scheduler/core/step_planner.h"

namespace flotilla::scheduler {

// What the scheduler believes of one open sequence, for comparison with
// worker/core. Spans are valid until the next call of a mutating method.
struct OpenSequenceView {
  SequenceHandle handle;
  RequestId request;
  SequenceIndex index;
  SequenceState state = SequenceState::kPrefill;
  Step opened;             // the plan that opened it under this handle
  std::uint32_t rank = 0;  // its request's place in the order of memory; 0 is never a victim
  LengthBounds length;
  // The tokens whose results are in. For a beam: the tokens that the workers know.
  absl::Span<const TokenId> tokens;
  std::vector<absl::Span<const BlockId>> tables;  // [groups]
};

// The state of one sequence, open or not.
struct SequenceStatus {
  RequestId request;
  SequenceIndex index;
  SequenceState state = SequenceState::kWaiting;
  std::uint32_t computed = 0;  // positions of an open sequence whose results are in
};

// A cheap snapshot for metrics.
struct CoreSnapshot {
  EngineLoad load;
  CoreCounters counters;
  std::uint32_t candidates = 0;      // of refused plans; some of them are held back
  std::uint32_t in_flight = 0;       // plans without a result
  std::uint32_t quarantined = 0;     // requests with fatal rows that are to run alone
  std::uint32_t blocks_cached = 0;   // in no table, kept for their contents
  std::uint64_t tier_blocks = 0;     // kept in tiers
  std::uint64_t waiting_tokens = 0;  // to be prefilled for waiting requests
};

class SchedulerCore {
 public:
  explicit SchedulerCore(const CoreOptions& options,
                         std::unique_ptr<OrderPolicy> policy = std::make_unique<PriorityPolicy>());

  // A worker group is up and empty. Requests that are too large for it end with
  // RESOURCE_EXHAUSTED; the others are recomputed on it. An epoch that is not newer is
  // ignored. INVALID_ARGUMENT: no plan can be made for this description; the group is
  // not used.
  absl::Status Ready(Epoch epoch, const ExecutorDescription& description);

  // The worker group of `epoch` is gone with its KV memory and all unanswered plans. Its
  // requests wait for the next Ready and keep the tokens that were delivered. `started`
  // are the steps that the group was computing when it died. Their requests are
  // quarantined; one that reaches CoreOptions::max_crashes ends with INTERNAL.
  void Lost(Epoch epoch, absl::Span<const Step> started = {});

  // The worker group of `epoch` is gone because it refused the plan of `step`, or gave a result
  // that does not answer it; no step: the oldest plan without a result. As Lost, but no request is
  // quarantined. The request whose operations are refused is sought by bisection (RefusedPlans)
  // and ends with INTERNAL, which says `why`. If none is found after many tries, the requests of
  // the refused plan end with UNAVAILABLE.
  void PlanRefused(std::int64_t now_ns, Epoch epoch, std::optional<Step> step,
                   absl::string_view why);

  // Accepts the request with an Accepted event, or refuses it with one RequestEnd.
  // INVALID_ARGUMENT and UNIMPLEMENTED: see admission.h. RESOURCE_EXHAUSTED with
  // a retry hint: the queue is full. UNAVAILABLE: draining, or no group was ever
  // ready. ALREADY_EXISTS: its id is in use. DEADLINE_EXCEEDED: the deadline has passed,
  // or is surely missed.
  void Submit(std::int64_t now_ns, TokenizedRequest request);

  // Ends the sequence at once, or all sequences of the request if none is named, in any
  // state. Unknown requests and sequences are ignored.
  void Cancel(const CancelRequest& cancel);

  // Applies the result of the oldest unanswered plan. Results of lost epochs are ignored.
  // INTERNAL: the result does not answer that plan; the caller must treat the group as
  // lost.
  absl::Status Apply(const StepResult& result);

  // Ends the requests that are past their deadline, then plans one step. The caller calls
  // it after every other call and at wake_ns, each time until there is no plan.
  PlanOutcome Plan(std::int64_t now_ns);

  // Refuses requests from now on.
  void Drain() { state_.draining = true; }

  // Ends every request with `status`.
  void Abort(const absl::Status& status);

  // Events since the last call, in order of emission.
  std::vector<EngineEvent> TakeEvents();
  // Preemptions since the last call, in order. It returns at most 256; the rest are only
  // counted.
  std::vector<Preemption> TakePreemptions();

  // The number of requests that are accepted and have not ended.
  std::size_t live_requests() const { return state_.requests.size(); }
  CoreSnapshot Snapshot() const;
  // The expected time until such a request would start if it came now. 0 without a group.
  std::int64_t PredictWaitNs(const TokenizedRequest& request) const;

  // Open sequences in ascending order of their handles. O(sequences).
  std::vector<OpenSequenceView> OpenSequences() const;
  // Every sequence of every request, by id and index. O(sequences): for tests.
  std::vector<SequenceStatus> SequenceStates() const;
  // The digest that the next plan starts from; 0 without a group.
  std::uint64_t digest() const;
  // Checks the invariants of docs/architecture.md that the core can see. INTERNAL names
  // the first that does not hold. It reads the whole state: for tests.
  absl::Status CheckInvariants() const;

 private:
  void EndAll(const std::vector<RequestId>& ids, FinishReason reason, const absl::Status& status);
  void Refuse(const TokenizedRequest& request, absl::Status status, std::int64_t retry_after_ms);
  absl::Status CheckEntry(std::int64_t now_ns, const TokenizedRequest& request) const;
  // Checks the bounds of the queue, which do not apply to replays.
  absl::Status CheckQueue(const TokenizedRequest& request) const;
  TableIndex Accept(TokenizedRequest request);
  void AddSequences(TableIndex index, std::uint32_t count, std::vector<TokenId> prompt,
                    std::vector<std::vector<TokenId>> prefixes);
  void EndComplete(TableIndex request);
  void CancelBeam(TableIndex request, SequenceIndex index);
  void EndLate();
  void DropLate();
  void ExpireDeadlines(std::int64_t now_ns);

  CoreState state_;
};

}  // namespace flotilla::scheduler
