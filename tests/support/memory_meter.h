// MemoryMeter: measures what the KV pool holds, from the scheduler's own state.
//
// It samples every sequence's block table and lengths each time the scheduler has planned
// (InProcessEngineOptions::on_planned). Time is counted in steps: a sample counts once
// for each plan sent since the previous sample. So other work on the machine changes
// nothing, and a request's last steps weigh as much when few others run. A slot counts
// as used when a plan that will write it has been sent; a slot of a shared block counts
// once. There is one KV group, with 16 slots a block. The engine loop's thread calls
// Sample; any thread may call Take.
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
  double blocks = 0;           // blocks in at least one table
  double unshared_blocks = 0;  // the number if no two tables shared a block
  double wasted_slots = 0;     // of `blocks`, not written by any plan sent
  double sequences = 0;        // open sequences
  std::uint32_t peak_blocks = 0;
  std::uint32_t worst_waste = 0;  // slots of one sequence's table beyond its length
  std::uint64_t mismatches = 0;   // samples at which the pool's own count differed

  double mean_blocks() const { return blocks / steps; }
  double mean_sequences() const { return sequences / steps; }
  double waste() const { return wasted_slots / (16 * blocks); }
  double saving() const { return 1 - blocks / unshared_blocks; }
};

class MemoryMeter {
 public:
  void Sample(const scheduler::SchedulerCore& core) ABSL_LOCKS_EXCLUDED(mu_);
  // The sums since the last call.
  MemoryUse Take() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Look {
    std::uint32_t blocks = 0, unshared_blocks = 0, sequences = 0, worst_waste = 0;
    std::uint64_t used_slots = 0;
  };
  Look LookAt(const scheduler::SchedulerCore& core) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Mutex mu_;
  MemoryUse use_ ABSL_GUARDED_BY(mu_);
  std::uint64_t plans_ ABSL_GUARDED_BY(mu_) = 0;  // plans sent at the last sample
  // [blocks + 1]: 1 + the slots written, for each block in a table. All 0 between samples.
  std::vector<std::uint8_t> written_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::testing
