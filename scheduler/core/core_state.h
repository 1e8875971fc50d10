// CoreState: all that a scheduler core knows, and the moves that every part of
// it shares (open, end, preempt). Planning is in step_planner, results in
// result_applier, the rules of entry in admission, the proofs in invariants.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/types/event.h"
#include "common/types/executor.h"
#include "scheduler/core/fair_share.h"
#include "scheduler/core/handle_table.h"
#include "scheduler/core/indexed_table.h"
#include "scheduler/core/kv_cache_manager.h"
#include "scheduler/core/options.h"
#include "scheduler/core/policy.h"
#include "scheduler/core/preemption.h"
#include "scheduler/core/rates.h"
#include "scheduler/core/request.h"
#include "scheduler/core/sequence.h"
#include "scheduler/core/speculation.h"
#include "scheduler/core/waiting_queue.h"

namespace flotilla {

// The run of one sequence in a plan, kept until its result.
struct PlannedRun {
  SequenceHandle handle;
  std::uint32_t begin = 0;  // of a chunk: the length before it
  // Positions that it adds: of a chunk its rows, of a decode one and its draft tokens
  // at most. Both 0: surely finished before.
  std::uint32_t least = 0, most = 0;
  std::uint32_t depth = 0;  // draft tokens that a decode may make
  bool chunk = false;       // prefill; else a decode
  bool samples = false;     // brings tokens unless the sequence has finished
  bool prompt_logprobs = false;
  std::uint32_t candidates = 0;  // that it asked for
};

struct PlanInFlight {
  Step step;
  std::vector<PlannedRun> runs;  // ascending handles
};

// The state that begins and ends with one epoch of the worker group.
struct EpochState {
  EpochState(Epoch epoch, const ExecutorDescription& description, bool prefix_cache)
      : epoch(epoch),
        kv(description.groups, description.block_count, prefix_cache, description.tiers),
        handles(description.max_sequences),
        micro_batch_sizes(description.lag, 0) {}

  Epoch epoch;
  Step last_step{0};
  KvCacheManager kv;
  HandleTable handles;
  std::vector<std::uint32_t> micro_batch_sizes;  // [lag] open sequences
  std::deque<PlanInFlight> in_flight;            // sent and not answered, in order
};

// Totals since the core was made. A request ends under the reason of its sequence
// that ended last.
struct CoreCounters {
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::uint64_t stopped = 0;
  std::uint64_t length = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t expired = 0;
  std::uint64_t dropped_late = 0;  // of them before they started
  std::uint64_t failed = 0;
  std::uint64_t preemptions = 0;          // of requests, for memory
  std::uint64_t swapped = 0;              // of them those whose blocks went to a tier
  PreemptionCounters preempted{};         // the same, by reason
  std::uint64_t blocks_out = 0;           // begun to be copied to tiers
  std::uint64_t blocks_in = 0;            // and back
  std::uint64_t replays = 0;              // open requests of a lost group
  std::uint64_t quarantines = 0;          // of them under way when a group died
  std::uint64_t quarantine_releases = 0;  // of them released: they got past that point
  std::uint64_t quarantine_failures = 0;  // and those failed for what they do to groups
  std::uint64_t resumptions = 0;          // requests opened again
  std::uint64_t bypasses = 0;             // requests that started before an earlier one
  std::uint64_t forks = 0;                // sequences that share another's blocks
  std::uint64_t block_copies = 0;
  std::uint64_t deferrals = 0;
  std::uint64_t noops = 0;  // decodes of sequences that had finished
  std::uint64_t plans = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t lookup_tokens = 0;  // looked up in the prefix cache
  std::uint64_t cached_tokens = 0;  // found there, and not prefilled
  std::uint64_t prefix_waits = 0;   // plans in which a prompt waited for another's prefix
  std::uint64_t evictions = 0;      // cached blocks given away
  std::uint64_t output_tokens = 0;
  std::uint64_t drafted_tokens = 0;   // drafted and run
  std::uint64_t accepted_tokens = 0;  // of them right: each saved a step of its sequence
  std::uint64_t trims = 0;            // times that blocks for wrong draft tokens were taken back
};

struct CoreState {
  CoreState(const CoreOptions& options, std::unique_ptr<OrderPolicy> policy);
  CoreState(const CoreState&) = delete;
  CoreState& operator=(const CoreState&) = delete;

  const CoreOptions options;
  const std::unique_ptr<OrderPolicy> policy;

  FairShare fair;
  RequestTable requests;
  IndexedTable<Sequence> sequences;
  WaitingQueue waiting;
  DeadlineQueue deadlines;
  // Sequences of open requests, pending ones too: requests in the order of the
  // policy, the sequences of each by index.
  std::vector<TableIndex> running;
  std::uint32_t reserved_sequences = 0;        // sum of the open requests' width
  std::uint32_t quarantined = 0;               // requests
  std::optional<TableIndex> isolated_request;  // the one that is open
  std::uint64_t next_arrival = 0;
  std::uint64_t outstanding_tokens = 0;  // sum of Sequence::outstanding_tokens
  bool draining = false;
  // Thousandths of their allowed output that requests make, in 1/1024; see
  // CoreOptions::expected_output_permille.
  std::int64_t output_ratio = 0;

  std::optional<ExecutorDescription> description;  // of the last epoch
  std::optional<EpochState> epoch;                 // while a group is ready
  Epoch last_epoch{0};
  Rates rates;
  StepCosts costs;

  CoreCounters counters;
  std::vector<EngineEvent> events;      // not yet taken
  std::vector<Preemption> preemptions;  // not yet taken

  // Sequences that may be open at once in this epoch.
  std::uint32_t MaxRunning() const;
  std::uint32_t MaxStepTokens() const;
  // Tokens that a decode may draft ahead at most; 0: speculation is off.
  std::uint32_t MaxDraftTokens() const;

  Request& RequestOf(const Sequence& sequence) { return requests[sequence.request]; }
  const Request& RequestOf(const Sequence& sequence) const { return requests[sequence.request]; }
  // Output tokens known of a sequence, and whether it runs as beam search says.
  std::uint32_t OutputTokens(const Sequence& sequence) const {
    return static_cast<std::uint32_t>(sequence.tokens.size()) - RequestOf(sequence).prompt_tokens;
  }
  bool IsBeam(const Sequence& sequence) const { return RequestOf(sequence).beam != nullptr; }
  std::uint32_t expected_output_permille() const {
    return static_cast<std::uint32_t>(output_ratio / 1024);
  }
  // The most blocks that a request alone can come to hold.
  std::uint64_t MostBlocks(const Request& request) const;
  // Outputs that a sequence is predicted to make yet, and the time that a request
  // would need to finish if it started now, of which `cached_tokens` need not be
  // computed.
  std::uint64_t PredictOutputs(const Sequence& sequence) const;
  std::int64_t PredictNs(const Request& request, std::uint64_t cached_tokens) const;
  // The time to compute a block of K and V again.
  std::int64_t RecomputeNs() const;
  // Counts the sequence's outstanding tokens anew. Called after every change to its tokens,
  // lengths or fork.
  void UpdateOutstanding(Sequence& sequence);

  // Puts a request that is not open into the queue.
  void Enqueue(TableIndex request);
  // Takes a request out of the queue: its sequences are pending. reserved_sequences
  // grows by its width.
  void AdmitRequest(TableIndex request);
  // Adds a sequence to an open request, as a beam that is to be forked.
  TableIndex AddSequence(Sequence sequence);
  // Ends one sequence: frees its blocks and forgets it; says nothing.
  void DropSequence(TableIndex sequence);

  // Ends an answer of a request and says so: SequenceEnd, of which `kept` tokens
  // count. Once no sequence is left, the request's end must follow.
  void EmitSequenceEnd(Request& request, SequenceIndex index, FinishReason reason,
                       std::uint32_t kept, float score = 0);
  // Ends a sequence that is an answer (not a beam), and with the last one its request.
  void EndSequence(TableIndex sequence, FinishReason reason, std::uint32_t kept);
  // A sequence has made `outputs` tokens and no more: what others may be expected to.
  void LearnOutputRatio(std::uint32_t outputs, std::uint32_t max_tokens);
  // Ends all that is left of a request. Its sequences keep their tokens.
  void EndRequest(TableIndex request, FinishReason reason, absl::Status status);
  // Emits the RequestEnd of a request that has no sequences left, and forgets it.
  void Forget(TableIndex request);

  // Takes an open request's blocks, of which `winner` needs some (it may be the same
  // request), and puts it back into the queue. No result is outstanding for it.
  void Preempt(TableIndex request, TableIndex winner);
  // All open requests go back to the queue, and the epoch is over.
  void LoseEpoch();
  // The group died while it computed these steps, before LoseEpoch: requests that
  // they ran are quarantined. Returns one of them that is to be failed.
  std::optional<TableIndex> Blame(absl::Span<const Step> started);
  // Quarantines the request: it runs alone until it is past the tokens that it knows.
  void Quarantine(Request& request);
  // Releases the isolated request from quarantine if results have brought it far enough.
  void EndQuarantine();

 private:
  void Detach(Sequence& sequence);
  void LeaveRunning(TableIndex sequence);
  void AddRunning(TableIndex sequence);
  void Requeue(TableIndex request);
  void PlanForks(Request& request);
  void CountReason(FinishReason reason);
};

}  // namespace flotilla
