// DeviceExchange: how the ranks of a group on GPUs move activations that lie in memory of their
// devices. Full rows of logits do not belong here: they go to the host's sampler, through Exchange.
//
// CudaBackend owns one, over its device. StagedExchange goes through the host; NcclExchange from
// GPU to GPU. An exchange never lets a library add floats: sums are those of SumTree, in its order,
// so all exchanges give the same bits.
//
// All ranks make the same calls in the same order. One thread at a time makes them. They enqueue
// work for computing, and may wait for other ranks. After Abort nobody waits, and every call fails.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/compute/cuda/arena.h"
#include "worker/core/sharding.h"

namespace flotilla::worker {

class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  // Takes memory for sums of `tree` of up to `rows` rows of `columns` floats. Called before a sum
  // is made. RESOURCE_EXHAUSTED: there is no memory.
  virtual absl::Status Reserve(const SumTree& tree, std::int64_t rows, std::int64_t columns) = 0;

  // Sums the parts of all ranks of the stage. `parts` are this rank's, [parts, rows, columns]. The
  // sum, [rows, columns] on the device, is valid until the next Sum.
  virtual absl::StatusOr<const float*> Sum(const SumTree& tree, const float* parts,
                                           std::int64_t rows, std::int64_t columns) = 0;

  // Moves `count` floats from rank t of a stage to rank t of the next. `pinned` is memory of the
  // step.
  virtual absl::Status SendResidual(const float* data, std::int64_t count, Arena& pinned) = 0;
  virtual absl::Status ReceiveResidual(float* data, std::int64_t count, Arena& pinned) = 0;

  // A step begins, and all its work has ended. Steps may overlap.
  virtual void BeginStep() {}
  virtual void EndStep() {}

  // The number of parts that a rank of the stage has.
  static std::int64_t PartsOf(const SumTree& tree, std::uint32_t rank) {
    return std::count_if(tree.parts.begin(), tree.parts.end(),
                         [&](const SumTree::Part& part) { return part.rank == rank; });
  }

  // The first error. Work that fails behind the calls is seen here, once the device has done it.
  virtual absl::Status status() { return absl::OkStatus(); }
  // Any thread may call it, and more than once.
  virtual void Abort() = 0;
};

}  // namespace flotilla::worker
