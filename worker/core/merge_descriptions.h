// Makes the description of a worker group from those of its ranks. Pure function.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/executor.h"

namespace flotilla::worker {

// Returns what all ranks can do: the least capacity and the slowest rates.
// INVALID_ARGUMENT: the ranks serve different models or options; the message names what
// they do not agree on. `ranks` is not empty.
absl::StatusOr<ExecutorDescription> MergeDescriptions(absl::Span<const ExecutorDescription> ranks);

}  // namespace flotilla::worker
