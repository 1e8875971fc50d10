#include "tests/gpu_check/gpu.h"

namespace flotilla::kernels::cuda {

std::unique_ptr<Gpu> OpenGpu(std::string& why) {
  why = "gpu_checker is built without CUDA: only --simulate works";
  return nullptr;
}

absl::StatusOr<std::unique_ptr<worker::Device>> OpenDevice() {
  return absl::UnavailableError("gpu_checker is built without CUDA");
}

}  // namespace flotilla::kernels::cuda
