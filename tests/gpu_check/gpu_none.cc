#include "tests/gpu_check/gpu.h"

namespace flotilla::kernels::cuda {

std::unique_ptr<Gpu> OpenGpu(std::string& why) {
  why = "gpu_checker is built without CUDA: only --simulate works";
  return nullptr;
}

int GpuCount() { return 0; }

absl::StatusOr<std::unique_ptr<worker::Device>> OpenDevice(int) {
  return absl::UnavailableError("gpu_checker is built without CUDA");
}

}  // namespace flotilla::kernels::cuda
