// WorkerProbe: counts what a worker group has done so far, for its metrics.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/types/plan.h"

namespace flotilla {

// One thread writes. Any thread may read, as a scrape does.
struct WorkerProbe {
  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> rows{0};         // tokens through the forward
  std::atomic<std::uint64_t> decode_rows{0};  // rows of decodes
  std::atomic<std::int64_t> compute_ns{0};    // forward and sampling
  std::atomic<std::uint64_t> epochs_lost{0};
  std::atomic<std::int64_t> weight_bytes{0};
  std::atomic<std::int64_t> buffer_bytes{0};

  void OnStep(const StepTimings& timings) {
    ++steps;
    rows += timings.rows;
    decode_rows += timings.decode_rows;
    compute_ns += timings.compute_ns;
  }
};

}  // namespace flotilla
