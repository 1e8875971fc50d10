#include "tests/support/simulated_gpu.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/host_ops.h"
#include "worker/compute/cuda/cuda_backend.h"
#include "worker/device/simulated_device.h"

namespace flotilla::testing {

std::vector<SimulatedGpus> AllSimulatedGpus() {
  const char* value = std::getenv("FLOTILLA_LONG");
  const bool is_long = value != nullptr && std::strcmp(value, "1") == 0;
  std::vector<SimulatedGpus> all;
  for (std::uint64_t seed = 1; seed <= (is_long ? 5 : 2); ++seed) {
    all.push_back({absl::StrCat("GpuQueues", seed), GpuMode::kQueues, seed});
  }
  if (is_long) all.push_back({"GpuFibers", GpuMode::kFibers, /*seed=*/1});
  return all;
}

worker::BackendMaker MakeSimulatedGpus(std::uint64_t seed, GpuMode mode, GpuFailure failure) {
  const auto made = std::make_shared<std::atomic<std::uint64_t>>(0);
  return [seed, mode, made, failure = std::move(failure)](const worker::BackendOptions& options) {
    worker::SimulatedDeviceOptions device;
    device.seed = seed * 1000 + made->fetch_add(1);
    device.ops =
        mode == GpuMode::kQueues ? &kernels::cuda::HostOps() : &kernels::cuda::SimulatedOps();
    auto gpu = std::make_unique<worker::SimulatedDevice>(device);
    if (failure != nullptr && *failure > 0) gpu->FailAfter(*failure);
    return std::make_unique<worker::CudaBackend>(options, std::move(gpu));
  };
}

}  // namespace flotilla::testing
