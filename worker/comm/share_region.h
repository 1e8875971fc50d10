// Memory that all ranks of a job on one host share.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/comm/shared_memory_communicator.h"

namespace flotilla::worker {

// All ranks call it at the same time, with the same size, after MPI_Init. The memory has
// no name in any file system and is freed when the ranks end. RESOURCE_EXHAUSTED: there is
// not enough memory, on this rank or on all.
absl::StatusOr<SharedRegion> ShareRegion(std::int64_t bytes);

}  // namespace flotilla::worker
