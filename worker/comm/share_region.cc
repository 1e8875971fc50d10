#include "worker/comm/share_region.h"

#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "common/rt/unique_fd.h"

namespace flotilla::worker {

absl::StatusOr<SharedRegion> ShareRegion(std::int64_t bytes) {
  char path[64] = "";
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  UniqueFd memory;
  if (rank == 0) {
    memory.Reset(memfd_create("flotilla-exchange", MFD_CLOEXEC));
    if (memory.ok()) std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), memory.get());
  }
  MPI_Bcast(path, sizeof(path), MPI_CHAR, 0, MPI_COMM_WORLD);
  absl::StatusOr<SharedRegion> region =
      path[0] == '\0' ? absl::ResourceExhaustedError("rank 0 has no memory to share")
                      : SharedRegion::Open(path, bytes);
  MPI_Barrier(MPI_COMM_WORLD);  // before rank 0 closes what the others open
  return region;
}

}  // namespace flotilla::worker
