// The GPUs of this machine, as gpu_checker uses them. gpu_cuda.cc implements it with the runtime
// of CUDA, and gpu_none.cc in a build without CUDA, where there is no GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "tests/gpu_check/target.h"
#include "tests/kernels/cuda/op_cases.h"
#include "worker/device/device.h"

namespace flotilla::kernels::cuda {

// GPU number 0. One thread uses it.
class Gpu {
 public:
  virtual ~Gpu() = default;

  // What checks run on. It lives as long as the GPU.
  virtual Target& target() = 0;

  // Its name, driver, memory, clocks and so on.
  virtual nlohmann::json Describe() = 0;

  // Calls `launch`, which enqueues kernels on the stream of the target and returns 0 or an error,
  // once, and then until enough time has passed. Returns the median of the times that the GPU took
  // for one call, in microseconds; a negative number after an error.
  virtual double Microseconds(const std::function<int()>& launch) = 0;

  // The bytes per second, read and written, of a long copy inside the GPU's memory; negative after
  // an error.
  virtual double CopyRate() = 0;
};

// Null if no GPU can be used; `why` says why, in one line.
std::unique_ptr<Gpu> OpenGpu(std::string& why);

// The number of GPUs; 0 where there is no driver.
int GpuCount();

// GPU `index` as a backend uses it, once more for each call. UNAVAILABLE: it cannot be used. Any
// thread calls it.
absl::StatusOr<std::unique_ptr<worker::Device>> OpenDevice(int index);

}  // namespace flotilla::kernels::cuda
