// CoreState: all that a scheduler core knows, and the moves that every part of
// it shares (end, preempt). Planning is in step_planner, results in
// result_applier, the rules of entry in admission, the proofs in invariants.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/types/event.h"
#include "common/types/executor.h"
#include "scheduler/core/branch_table.h"
#include "scheduler/core/handle_table.h"
#include "scheduler/core/kv_ledger.h"
#include "scheduler/core/options.h"
#include "scheduler/core/policy.h"
#include "scheduler/core/rates.h"
#include "scheduler/core/waiting_queue.h"

namespace flotilla {

// What a plan asked of one branch, kept until its result.
struct PlannedRun {
  BranchHandle handle;
  std::uint32_t begin = 0;  // upper bound of the length before the run
  std::uint32_t end = 0;    // and after it; equal: surely finished before
  bool chunk = false;       // prefill; else a decode
  bool samples = false;     // brings a token unless the branch has finished
  bool prompt_logprobs = false;
};

struct PlanInFlight {
  Step step;
  std::vector<PlannedRun> runs;  // ascending handles
};

// What lives and dies with one epoch of the worker group.
struct EpochState {
  EpochState(Epoch epoch, const ExecutorDescription& description, bool prefix_cache)
      : epoch(epoch),
        kv(description.groups, description.block_count, prefix_cache),
        handles(description.max_branches),
        cohort_sizes(description.lag, 0) {}

  Epoch epoch;
  Step last_step{0};
  KvLedger kv;
  HandleTable handles;
  std::vector<std::uint32_t> cohort_sizes;  // [lag] open branches
  std::deque<PlanInFlight> in_flight;       // sent and not answered, in order
};

// Totals since the core was made.
struct CoreCounters {
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::uint64_t stopped = 0;
  std::uint64_t length = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t expired = 0;
  std::uint64_t failed = 0;
  std::uint64_t preemptions = 0;  // for memory
  std::uint64_t replays = 0;      // open branches of a lost group
  std::uint64_t resumptions = 0;  // opened again
  std::uint64_t skips = 0;
  std::uint64_t noops = 0;  // decodes of branches that had finished
  std::uint64_t plans = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t lookup_tokens = 0;  // looked up in the prefix cache
  std::uint64_t cached_tokens = 0;  // found there, and not prefilled
  std::uint64_t prefix_waits = 0;   // plans that a prompt sat out for another's prefix
  std::uint64_t evictions = 0;      // cached blocks given away
  std::uint64_t output_tokens = 0;
};

struct CoreState {
  CoreState(const CoreOptions& options, std::unique_ptr<OrderPolicy> policy);
  CoreState(const CoreState&) = delete;
  CoreState& operator=(const CoreState&) = delete;

  const CoreOptions options;
  const std::unique_ptr<OrderPolicy> policy;

  BranchTable branches;
  WaitingQueue waiting;
  DeadlineQueue deadlines;
  std::vector<Slot> running;  // open branches in the order of the policy
  std::uint64_t next_arrival = 0;
  std::uint64_t owed_tokens = 0;  // sum of Branch::owed_tokens
  bool draining = false;

  std::optional<ExecutorDescription> description;  // of the last epoch
  std::optional<EpochState> epoch;                 // while a group is ready
  Epoch last_epoch{0};
  Rates rates;

  CoreCounters counters;
  std::vector<EngineEvent> events;  // not yet taken

  // Branches that may be open at once in this epoch. Below the row budget, so
  // that decodes alone never fill a plan that a prompt waits for.
  std::uint32_t MaxRunning() const;
  std::uint32_t MaxStepTokens() const;

  // Ends a branch and its request: emits BranchEnd and RequestEnd, frees its
  // blocks, forgets it. `kept` output tokens count for usage.
  void End(Slot slot, FinishReason reason, std::uint32_t kept, absl::Status status);
  // Takes an open branch's blocks and puts it back into the queue; it will be
  // recomputed from its tokens. No result is outstanding for it.
  void Preempt(Slot slot);
  // All open branches go back to the queue, and the epoch is over.
  void LoseEpoch();
  // Inserts an open branch into `running`.
  void AddRunning(Slot slot);

 private:
  void Detach(Slot slot);
  void Requeue(Slot slot);
};

}  // namespace flotilla
