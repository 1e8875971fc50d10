// Random cases of the ops for GPUs, compared bit for bit with kernels/reference. They run on a GPU
// (tests/gpu_check) and on the simulated one (simulated_ops_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "kernels/cuda/ops.h"

namespace flotilla::kernels::cuda {

// Memory of a device, or of the simulated one.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Every byte is 0xFF, so that every number is NaN. Null: no memory is left.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void FreeAll() = 0;
  // These return 0 or an error. Download waits for the stream.
  virtual int Upload(void* to, const void* from, size_t bytes) = 0;
  virtual int Download(void* to, const void* from, size_t bytes) = 0;
  virtual Stream stream() = 0;
  // What went wrong last.
  virtual std::string Error() = 0;
};

struct OpResult {
  bool passed = false;
  std::string shape;
  std::string difference;  // the first one, or the error
};

absl::Span<const std::string_view> OpNames();

// Runs case number `seed` of the op. Its shape is a function of the seed. `small`: shapes that the
// simulation runs in less than a second.
OpResult RunOpCase(std::string_view op, uint64_t seed, bool small, const Ops& ops,
                   DeviceMemory& memory);

}  // namespace flotilla::kernels::cuda
