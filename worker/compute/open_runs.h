// OpenRuns: where a step finds the runs that are not full, of layers whose K or V is kept by runs
// (kernels/kv_layout.h).
//
// Between steps a sequence has one open run, numbered like its handle: that of its last row. A step
// whose rows of a sequence go on into further runs puts these behind the handles, and the last of
// them becomes the sequence's own when the layer's attention is done. So nothing is remembered from
// step to step. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/compute/step_inputs.h"

namespace flotilla::worker {

struct OpenRuns {
  // A run whose last row is in this step: it is sealed before any row attends.
  struct Full {
    std::int32_t sequence = 0;  // of the step
    std::int32_t run = 0;       // positions 64 run to 64 run + 63

    bool operator==(const Full&) const = default;
  };
  struct Move {
    std::int32_t from = 0, to = 0;

    bool operator==(const Move&) const = default;
  };

  std::vector<std::int32_t> ids;     // of each sequence, from the run of its first row on; the
                                     // first is its own, which has position 0, too
  std::vector<std::int32_t> begins;  // [sequences] into `ids`
  std::vector<Full> full;
  std::vector<Move> moves;  // copies to be made when the attention of a layer is done
};

// Those of a step. Handles are below `max_sequences`.
OpenRuns PlanOpenRuns(absl::Span<const StepSequence> sequences, std::int32_t max_sequences);

// What ids are below, in a step of at most `max_rows` rows.
std::int32_t MostOpenRuns(std::int32_t max_sequences, std::int32_t max_rows);

}  // namespace flotilla::worker
