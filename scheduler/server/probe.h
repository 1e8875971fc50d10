// SchedulerProbe: records what the engine loop does, for the export of metrics.
//
// Methods are named after events and are called within a round only, except where noted.
// Any thread may call Read, which returns one consistent snapshot. Totals count from the
// start of the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/types/plan.h"
#include "scheduler/core/scheduler_core.h"

namespace flotilla::scheduler {

// Counts by powers of two: bucket i counts durations up to 2^i microseconds, and the last
// bucket counts all longer ones.
struct DurationHistogram {
  static constexpr std::size_t kBuckets = 25;  // up to 16.8 s
  std::array<std::uint64_t, kBuckets + 1> counts{};
  std::int64_t sum_ns = 0;

  void Add(std::int64_t ns) {
    std::size_t bucket = 0;
    while (bucket < kBuckets && ns > (std::int64_t{1000} << bucket)) ++bucket;
    ++counts[bucket];
    sum_ns += ns;
  }
};

struct SchedulerSnapshot {
  CoreSnapshot core;            // queue, running, blocks, totals by kind
  DurationHistogram plan_time;  // to make one plan
  std::uint64_t steps = 0;
  std::uint64_t rows = 0;         // tokens through the model
  std::uint64_t decode_rows = 0;  // rows of decodes
  std::uint64_t groups_lost = 0;
  std::uint64_t groups_stopped = 0;  // those of them that said that they stop
  // The time on the loop's clock since which the oldest unanswered plan is the next to be
  // answered; none: every plan is answered.
  std::optional<std::int64_t> unanswered_since_ns;
};

class SchedulerProbe {
 public:
  void OnPlanned(std::int64_t plan_ns) {
    absl::MutexLock lock(&mu_);
    snapshot_.plan_time.Add(plan_ns);
  }
  void OnStepDone(std::int64_t now_ns, const StepTimings& timings) {
    absl::MutexLock lock(&mu_);
    ++snapshot_.steps;
    snapshot_.rows += timings.rows;
    snapshot_.decode_rows += timings.decode_rows;
    snapshot_.unanswered_since_ns = now_ns;  // until OnState says that none is left
  }
  void OnGroupLost(bool stopped) {
    absl::MutexLock lock(&mu_);
    ++snapshot_.groups_lost;
    if (stopped) ++snapshot_.groups_stopped;
  }
  // Records the state after a round.
  void OnState(std::int64_t now_ns, const CoreSnapshot& core) {
    absl::MutexLock lock(&mu_);
    snapshot_.core = core;
    if (core.in_flight == 0) {
      snapshot_.unanswered_since_ns.reset();
    } else if (!snapshot_.unanswered_since_ns.has_value()) {
      snapshot_.unanswered_since_ns = now_ns;
    }
  }

  SchedulerSnapshot Read() const {
    absl::MutexLock lock(&mu_);
    return snapshot_;
  }

 private:
  mutable absl::Mutex mu_;
  SchedulerSnapshot snapshot_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::scheduler
