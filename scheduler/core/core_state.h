// CoreState: the whole state of a scheduler core, and the operations that its parts
// share (admit, end, preempt). step_planner makes plans, result_applier applies results,
// admission decides which requests are accepted, and invariants checks this state.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/types/event.h"
#include "common/types/executor.h"
#include "common/types/request.h"
#include "scheduler/core/fair_share.h"
#include "scheduler/core/forecast/forecast.h"
#include "scheduler/core/handle_table.h"
#include "scheduler/core/indexed_table.h"
#include "scheduler/core/kv_cache_manager.h"
#include "scheduler/core/options.h"
#include "scheduler/core/policy.h"
#include "scheduler/core/preemption.h"
#include "scheduler/core/quarantine.h"
#include "scheduler/core/refused_plans.h"
#include "scheduler/core/request.h"
#include "scheduler/core/sequence.h"
#include "scheduler/core/speculation.h"
#include "scheduler/core/waiting_queue.h"

namespace flotilla::scheduler {

// The run of one sequence in a plan, kept until its result.
struct PlannedRun {
  SequenceHandle handle;
  std::uint32_t begin = 0;  // for a chunk: the sequence's length before it
  // The fewest and the most positions that the run adds. For a chunk, both are its rows.
  // For a decode, `least` is 1 and `most` is 1 plus its draft tokens. Both are 0 if the
  // sequence has surely finished before. A run that samples under a
  // constraint has one less at least, since its mask may be late.
  std::uint32_t least = 0, most = 0;
  std::uint32_t depth = 0;  // draft tokens that a decode may make
  bool chunk = false;       // prefill; else a decode
  bool samples = false;     // the result has tokens unless the sequence has finished
  bool prompt_logprobs = false;
  RequestId request;             // with prompt_logprobs: whose they are,
  Attempt attempt;               // and of which attempt
  std::uint32_t candidates = 0;  // Run::candidates
};

struct PlanInFlight {
  Step step;
  bool isolated = false;
  std::vector<PlannedRun> runs;  // ascending handles
  StepShape shape;
};

// The state that begins and ends with one epoch of the worker group.
struct EpochState {
  EpochState(Epoch epoch, const ExecutorDescription& description, bool prefix_cache)
      : epoch(epoch),
        kv(description, prefix_cache),
        usable_blocks(std::uint64_t{kv.pool().total()} * 64),
        handles(description.max_sequences),
        micro_batch_sizes(description.lag, 0) {}

  Epoch epoch;
  Step last_step{0};
  KvCacheManager kv;
  // The blocks that are used while requests wait for blocks, in the mean: what is kept for the
  // growth of running requests cannot be used. In 1/64; the whole pool until it is known.
  std::uint64_t usable_blocks;
  HandleTable handles;
  std::vector<std::uint32_t> micro_batch_sizes;  // [lag] open sequences
  std::deque<PlanInFlight> in_flight;            // sent and not answered, in order
};

// Totals since the core was made. A request that ends is counted under the finish reason
// of its last sequence.
struct CoreCounters {
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::uint64_t stopped = 0;
  std::uint64_t length = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t expired = 0;
  std::uint64_t dropped_late = 0;  // those of `expired` that ended before they began
  std::uint64_t ended_late = 0;    // those that ended while they ran, before their deadline
  std::uint64_t failed = 0;
  std::uint64_t preemptions = 0;          // of requests, for memory
  std::uint64_t swapped = 0;              // preemptions whose blocks went to a tier
  PreemptionCounters preempted{};         // the same, by reason
  std::uint64_t blocks_out = 0;           // copies of blocks to tiers that were begun
  std::uint64_t blocks_in = 0;            // copies of blocks from tiers that were begun
  std::uint64_t replays = 0;              // requests that were open when their group was lost
  std::uint64_t quarantines = 0;          // requests that a group was computing when it died
  std::uint64_t quarantine_releases = 0;  // quarantined requests that got past that point
  std::uint64_t quarantine_failures = 0;  // requests failed by CoreOptions::max_crashes
  std::uint64_t plans_refused = 0;        // by the worker group, or with a wrong result
  std::uint64_t refused_failures = 0;     // requests failed because their operations are refused
  std::uint64_t refused_given_back = 0;   // requests given back, as no cause was found
  std::uint64_t resumptions = 0;          // requests opened again
  std::uint64_t bypasses = 0;             // requests that started before an earlier one
  std::uint64_t forks = 0;                // sequences that share another's blocks
  std::uint64_t block_copies = 0;
  std::uint64_t deferrals = 0;
  std::uint64_t noops = 0;  // decodes of sequences that had already finished
  std::uint64_t plans = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t lookup_tokens = 0;  // looked up in the prefix cache
  std::uint64_t cached_tokens = 0;  // found there, and not prefilled
  std::uint64_t prefix_waits = 0;   // plans in which a prompt waited for another's prefix
  std::uint64_t evictions = 0;      // cached blocks given away
  std::uint64_t output_tokens = 0;
  std::uint64_t drafted_tokens = 0;   // drafted and run
  std::uint64_t accepted_tokens = 0;  // draft tokens accepted: each saved a step of its sequence
  std::uint64_t late_rows = 0;        // gave no token, since the mask of their constraint was late
  std::uint64_t trims = 0;            // times that blocks for wrong draft tokens were taken back
};

// A request that asks to enter, as the forecast sees it.
struct ForecastEntry {
  Request request;               // without sequences; in no table
  FairShare::Standing standing;  // of its tenant
  ForecastWork needs;            // from its start to its end
  std::int64_t run_ns = 0;       // the expected time from its start to its end
};

struct CoreState {
  // The rows that prompts get in a step whatever its target is.
  static constexpr std::uint32_t kLeastChunkRows = 8;

  CoreState(const CoreOptions& options, std::unique_ptr<OrderPolicy> policy);
  CoreState(const CoreState&) = delete;
  CoreState& operator=(const CoreState&) = delete;

  const CoreOptions options;
  const std::unique_ptr<OrderPolicy> policy;

  FairShare fair;
  RequestTable requests;
  IndexedTable<Sequence> sequences;
  WaitingQueue waiting;
  ExpiryQueue expiries;
  std::size_t deadlines = 0;  // requests that have one
  // The sequences of open requests, pending ones included. Requests are in the order of
  // the policy, and the sequences of each request are in the order of their indices.
  std::vector<TableIndex> running;
  std::uint32_t reserved_sequences = 0;  // sum of the open requests' width
  QuarantinedRequests quarantine;
  RefusedPlans refused_plans;
  std::size_t held_back =
      0;  // candidates at the last plan; at least one has Request::held_back set
  std::uint64_t next_arrival = 0;
  std::uint64_t outstanding_tokens = 0;  // sum of Sequence::outstanding_tokens
  bool draining = false;
  std::int64_t now_ns = 0;  // of the present call

  std::optional<ExecutorDescription> description;  // of the last epoch
  std::optional<EpochState> epoch;                 // while a group is ready
  Epoch last_epoch{0};
  Forecast forecast;
  // How far memory is kept for more than the mean output, up to kMostCaution for the upper
  // quantile. Each preemption raises it, and each answer that ends lowers it.
  static constexpr std::uint32_t kMostCaution = 1024;
  std::uint32_t caution = 0;
  StepCosts costs;
  // The part of the last starts in which a request overtook others because its prompt is short, and
  // the lengths of all prompts: so many of the shortest overtake. In 1/65536.
  std::uint64_t overtaking = 0;
  std::uint64_t overtaken = 0;  // CoreCounters::bypasses at the last start
  DecayingHistogram<3, 24> prompts{1024};

  CoreCounters counters;
  std::vector<EngineEvent> events;      // not yet taken
  std::vector<Preemption> preemptions;  // not yet taken

  // The number of sequences that may be open at once in this epoch.
  std::uint32_t MaxRunning() const;
  std::uint32_t MaxStepTokens() const;
  // CoreOptions::max_overtaken_rows, or its default.
  std::uint64_t MaxOvertakenRows() const {
    if (options.max_overtaken_rows < 0) return 32 * std::uint64_t{options.max_step_tokens};
    return static_cast<std::uint64_t>(options.max_overtaken_rows);
  }
  // The most tokens that a decode may draft ahead. 0: speculation is off.
  std::uint32_t MaxDraftTokens() const;

  Request& RequestOf(const Sequence& sequence) { return requests[sequence.request]; }
  const Request& RequestOf(const Sequence& sequence) const { return requests[sequence.request]; }
  // The number of known output tokens of a sequence, and whether it is a beam.
  std::uint32_t OutputTokens(const Sequence& sequence) const {
    return static_cast<std::uint32_t>(sequence.tokens.size()) - RequestOf(sequence).prompt_tokens;
  }
  bool IsBeam(const Sequence& sequence) const { return RequestOf(sequence).beam != nullptr; }
  // Whether `a` goes before `b`: protected requests first, by policy and arrival, then the
  // others by tenant, policy and arrival. Tenants are charged, so under fair share this changes
  // from plan to plan.
  bool Before(const Request& a, const Request& b) const;
  // `running` in this order. The first request is never a victim, and the last one is the first.
  std::vector<TableIndex> RunningInOrder() const;
  // The most blocks that a request alone can come to hold.
  std::uint64_t MostBlocks(const Request& request) const;
  // The sequence of an admitted request that opens first. Null: some are open.
  const Sequence* OpensFirst(const Request& request) const;
  // The number of output tokens that a sequence is expected to still make, and the number for
  // which memory is kept. The latter is more after preemptions.
  std::uint64_t ExpectedOutputs(const Sequence& sequence) const;
  std::uint64_t ExpectedOutputsOf(TableIndex request) const;  // of all sequences or beams
  std::uint64_t MemoryOutputs(const Sequence& sequence) const;
  // As ExpectedOutputs, but at most as many as the longest sequence of the request makes in about
  // half of all cases: of a class with a few very long answers most are far below the mean.
  std::uint64_t MedianOutputs(const Sequence& sequence) const;
  // What is left of `outputs` tokens, within what the sequence may have.
  std::uint64_t RemainingOf(const Sequence& sequence, std::uint32_t outputs) const;
  // Whether the request misses its deadline even if it runs next and the forecast errs by as much
  // as it can, and whether it is more likely to than not.
  bool SurelyLate(const Request& request);
  bool ExpectedLate(const Request& request);
  // The positions of the request's prompt that the prefix cache has.
  std::uint32_t Cached(const Request& request);
  // Whether at most as many running sequences come to miss their deadline as this request has, once
  // it runs beside them, and most of those that have one are expected to meet it. A deadline is no
  // privilege: a request without one, which cannot be ended early, never waits for those that have
  // one.
  bool LeavesTime(const Request& request) const;
  // Whether nothing but max_tokens says how long the answer will be.
  bool HasUnknownLength(const Request& request) const;
  // Whether it is tried however late it seems, since its length is unknown, and few sequences of
  // unknown lengths are under way: that is how lengths become known.
  bool MayTry(const Request& request) const;
  // Forecasts the outputs of a sequence anew.
  void UpdateForecast(Sequence& sequence);
  // Learns from an answer that ended by itself, or, if it was ended, had at least `outputs` tokens.
  void LearnOutputs(const Request& request, std::uint32_t outputs, bool ended_itself);
  // The expected time that a request would need to finish if it started now and `cached_tokens`
  // of its tokens need not be computed. `median`: with MedianOutputs.
  std::int64_t PredictNs(const Request& request, std::uint64_t cached_tokens,
                         bool median = false) const;
  // The least time that it can need, as far as the forecast is sure.
  std::int64_t QuickestNs(const Request& request, std::uint64_t cached_tokens) const;
  // What the forecast says of a request that has not been accepted.
  ForecastEntry EntryOf(const TokenizedRequest& request) const;
  // The expected time until such a request would start. O(requests).
  std::int64_t PredictWaitNs(const ForecastEntry& entry) const;
  // Learns how many blocks can be used from a plan that was just made.
  void LearnUsableBlocks();
  // The predicted time to recompute the K and V of one block of tokens.
  std::int64_t RecomputeNs() const;
  // What steps with chunks keep to, where `decodes` are those that they make wait: the target of
  // the options, or a multiple of what these decodes take alone.
  StepTimeModel::Target ChunkTarget(const StepShape& decodes) const;
  // The sequences that run, as decodes.
  StepShape RunningShape() const;
  // Recounts the sequence's outstanding tokens. Must be called after every change to its
  // tokens, lengths, fork or forecast.
  void UpdateOutstanding(Sequence& sequence);

  // Puts a request that is not open into the queue.
  void Enqueue(TableIndex request);
  // Puts a waiting request behind all others.
  void Demote(TableIndex request);
  // Takes a request out of the queue. Its sequences become pending, and
  // reserved_sequences grows by its width.
  void AdmitRequest(TableIndex request);
  // Adds to an open request a sequence (a beam) that is still to be forked.
  TableIndex AddSequence(Sequence sequence);
  // Ends one sequence: frees its blocks and forgets it. Emits no event.
  void DropSequence(TableIndex sequence);

  // Emits the SequenceEnd of one answer of a request; `kept` of its tokens count. When
  // no sequence is left, the caller must also end the request.
  void EmitSequenceEnd(Request& request, SequenceIndex index, FinishReason reason,
                       std::uint32_t kept, float score = 0);
  // Ends a sequence that is an answer (not a beam). If it is the last one, its request
  // ends too.
  void EndSequence(TableIndex sequence, FinishReason reason, std::uint32_t kept);
  // Ends a request with all sequences that it still has. Their output tokens count.
  void EndRequest(TableIndex request, FinishReason reason, absl::Status status);
  // Emits the RequestEnd of a request that has no sequences left, and forgets it.
  void Forget(TableIndex request);

  // Preempts an open request: takes its blocks and puts it back into the queue. The
  // request `winner` needs some of them; it may be the same request. No result may be
  // outstanding for the request.
  void Preempt(TableIndex request, TableIndex winner);
  // Puts all open requests back into the queue and ends the epoch.
  void LoseEpoch();
  // Returns the requests that had new operations in the plan of `step`, in order of arrival. If it
  // had none, these are all requests that it ran. No step: the oldest plan in flight.
  std::vector<RefusedPlans::Candidate> OperationsOf(std::optional<Step> step) const;
  // Tells refused_plans the time and how far its candidates have got.
  void UpdateRefusedPlans(std::int64_t now_ns);

 private:
  using Decodes = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  Decodes DecodesBeside(const Request& request) const;
  std::int64_t DecodesNs(std::uint64_t steps, std::uint64_t length, const Decodes& others) const;
  void Detach(Sequence& sequence);
  void LeaveRunning(TableIndex sequence);
  void AddRunning(TableIndex sequence);
  void Requeue(TableIndex request);
  void PlanForks(Request& request);
  void CountReason(FinishReason reason);
};

}  // namespace flotilla::scheduler
