// DeviceWeights: weights of the model file in the memory of a device.
//
// A matrix is packed on the host as for CPUs (WeightPacker), copied to the device through two
// pinned buffers, and dropped. So the host never has more than one matrix of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/rt/load_progress.h"
#include "kernels/cuda/ops.h"
#include "worker/compute/backend.h"
#include "worker/compute/host/thread_pool.h"
#include "worker/compute/host/weight_packer.h"
#include "worker/device/device.h"

namespace flotilla::worker {

class DeviceWeights {
 public:
  // The device outlives it.
  explicit DeviceWeights(Device& device) : device_(device) {}

  // Lists a matrix, as WeightPacker::Add does. It stays where it is, and has no weights until Load.
  // UNIMPLEMENTED: GPUs do not multiply such weights; the message names the tensor and what they
  // multiply.
  absl::StatusOr<const kernels::cuda::Matrix*> Add(std::vector<MatrixPart> parts, std::int64_t k,
                                                   std::vector<WeightPacker::Segment> segments = {},
                                                   absl::Span<const std::int32_t> split_ends = {});

  // Packs and copies all of the list. An error names the tensor, or says that the device has no
  // room. `progress` and `pages`, which may be null, get the bytes of the file that are
  // read.
  absl::Status Load(ThreadPool& pool, LoadProgress* progress, model::PageReleaser* pages);

  std::int64_t bytes() const { return bytes_; }

 private:
  struct Listed {
    std::vector<MatrixPart> parts;
    std::int64_t k;
    std::vector<WeightPacker::Segment> segments;  // empty: whole rows of k
    std::vector<std::int32_t> split_ends;         // empty: one split
    kernels::cuda::Matrix* matrix;
  };

  absl::Status LoadOne(const Listed& listed, ThreadPool& pool, LoadProgress* progress,
                       model::PageReleaser* pages);
  // Copies host memory of any kind to new memory of the device.
  absl::StatusOr<std::byte*> Copy(const std::byte* from, std::size_t bytes);

  Device& device_;
  std::vector<Listed> listed_;
  std::deque<kernels::cuda::Matrix> matrices_;
  std::vector<Device::Memory> memory_;
  std::int64_t bytes_ = 0;

  // The two pinned buffers, and when their last copies have ended.
  struct Stage {
    Device::Memory memory;
    Device::Event done = 0;
  };
  Stage stages_[2];
  int next_stage_ = 0;
};

}  // namespace flotilla::worker
