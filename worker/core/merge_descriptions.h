// The description of a worker group, from those of its ranks. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/executor.h"

namespace flotilla {

// What all ranks can do: the least capacity and the slowest rates. INVALID_ARGUMENT
// names what they do not agree on: they serve different models or options then.
// `ranks` is not empty.
absl::StatusOr<ExecutorDescription> MergeDescriptions(absl::Span<const ExecutorDescription> ranks);

}  // namespace flotilla
