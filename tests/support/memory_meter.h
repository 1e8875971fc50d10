// MemoryMeter: what the KV pool holds, from the scheduler's own state.
//
// Looks at every sequence's table and lengths each time the scheduler has planned
// (InProcessEngineOptions::on_planned). Time is counted in steps: what it sees
// counts once for each plan sent since it looked last, so that other work on the
// machine changes nothing, and a request's last steps weigh as much when few others
// run. A slot counts as used once a plan that will write it was sent, and in a
// shared block once. One KV group of 16 slots a block. Sample is called by the
// engine loop's thread; Take by any.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/core/scheduler_core.h"

namespace flotilla::testing {

// Sums over steps.
struct MemoryUse {
  double steps = 0;
  double blocks = 0;           // that some table names
  double unshared_blocks = 0;  // if no two tables named the same one
  double wasted_slots = 0;     // of `blocks`, not written by any plan sent
  double sequences = 0;        // open ones
  std::uint32_t peak_blocks = 0;
  std::uint32_t worst_waste = 0;  // slots of one sequence's table beyond its length
  std::uint64_t mismatches = 0;   // looks at which the pool counted other blocks

  double mean_blocks() const { return blocks / steps; }
  double mean_sequences() const { return sequences / steps; }
  double waste() const { return wasted_slots / (16 * blocks); }
  double saving() const { return 1 - blocks / unshared_blocks; }
};

class MemoryMeter {
 public:
  void Sample(const SchedulerCore& core) ABSL_LOCKS_EXCLUDED(mu_);
  // All since the last call.
  MemoryUse Take() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Look {
    std::uint32_t blocks = 0, unshared_blocks = 0, sequences = 0, worst_waste = 0;
    std::uint64_t used_slots = 0;
  };
  Look LookAt(const SchedulerCore& core) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Mutex mu_;
  MemoryUse use_ ABSL_GUARDED_BY(mu_);
  std::uint64_t plans_ ABSL_GUARDED_BY(mu_) = 0;  // sent when it looked last
  // [blocks + 1] 1 + slots written of each that a table names; all 0 between looks.
  std::vector<std::uint8_t> written_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::testing
