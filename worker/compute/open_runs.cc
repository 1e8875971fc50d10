#include "worker/compute/open_runs.h"

#include <algorithm>

#include "kernels/kv_layout.h"

namespace flotilla::worker {

OpenRuns PlanOpenRuns(absl::Span<const StepSequence> sequences, std::int32_t max_sequences) {
  constexpr std::int32_t kRun = kernels::kKvRunTokens;
  OpenRuns runs;
  std::int32_t next = max_sequences;
  for (const StepSequence& sequence : sequences) {
    const auto index = static_cast<std::int32_t>(runs.begins.size());
    runs.begins.push_back(static_cast<std::int32_t>(runs.ids.size()));
    if (sequence.is_first_row) continue;
    const std::int32_t end = sequence.first_position + sequence.row_count;
    const std::int32_t first = sequence.first_position / kRun, last = (end - 1) / kRun;
    for (std::int32_t run = first; run <= last; ++run) {
      runs.ids.push_back(run == first ? sequence.handle : next++);
      if ((run + 1) * kRun <= end) runs.full.push_back({index, run});
    }
    // Also where it is full: a fork may begin within it until its sequence has a row in the next
    // one.
    if (last > first) runs.moves.push_back({next - 1, sequence.handle});
  }
  return runs;
}

// A sequence of n >= 2 rows goes on into 1 + (n - 2) / 64 runs at most.
std::int32_t MostOpenRuns(std::int32_t max_sequences, std::int32_t max_rows) {
  return max_sequences + std::min(max_sequences, max_rows / 2) + max_rows / kernels::kKvRunTokens;
}

}  // namespace flotilla::worker
