#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu_check/cuda_memory.h"
#include "tests/gpu_check/gpu.h"
#include "worker/device/cuda_device.h"

namespace flotilla::kernels::cuda {
namespace {

// Measures until this much time of the GPU has passed, within these numbers of calls. The whole
// stage has about 60 measurements.
constexpr float kEnoughMilliseconds = 30;
constexpr int kLeastCalls = 3, kMostCalls = 50;

// Long enough that no cache of a GPU holds it.
constexpr size_t kCopyBytes = size_t{1} << 30;

// The events that a call is timed between.
struct Events {
  cudaEvent_t begin = nullptr, end = nullptr;
  Events() {
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
  }
  ~Events() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
};

std::string Version(int number) { return absl::StrCat(number / 1000, ".", number % 1000 / 10); }

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(int count) : count_(count) {
    target_ = {.ops = &DeviceOps(), .run_twin = &device::RunTwin, .memory = &memory_};
  }

  Target& target() override { return target_; }

  nlohmann::json Describe() override {
    cudaDeviceProp properties{};
    int driver = 0, runtime = 0, clock_khz = 0, memory_khz = 0;
    cudaGetDeviceProperties(&properties, 0);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0);
    cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, 0);
    return {{"name", properties.name},
            {"number", 0},
            {"gpus on this machine", count_},
            {"compute capability", absl::StrCat(properties.major, ".", properties.minor)},
            {"multiprocessors", properties.multiProcessorCount},
            {"clock, MHz", clock_khz / 1000},
            {"memory clock, MHz", memory_khz / 1000},
            {"memory bus, bits", properties.memoryBusWidth},
            {"memory, MiB", properties.totalGlobalMem >> 20},
            {"L2 cache, MiB", properties.l2CacheSize >> 20},
            {"ECC", properties.ECCEnabled != 0},
            {"latest CUDA of the driver", Version(driver)},
            {"CUDA of this program", Version(runtime)}};
  }

  double Microseconds(const std::function<int()>& launch) override {
    const auto stream = static_cast<cudaStream_t>(memory_.stream());
    if (launch() != 0 || cudaStreamSynchronize(stream) != cudaSuccess) return -1;
    std::vector<float> times;
    for (float sum = 0; times.size() < kMostCalls;) {
      if (sum >= kEnoughMilliseconds && times.size() >= kLeastCalls) break;
      cudaEventRecord(events_.begin, stream);
      if (launch() != 0) return -1;
      cudaEventRecord(events_.end, stream);
      if (cudaEventSynchronize(events_.end) != cudaSuccess) return -1;
      float milliseconds = 0;
      cudaEventElapsedTime(&milliseconds, events_.begin, events_.end);
      times.push_back(milliseconds);
      sum += milliseconds;
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return 1e3 * times[times.size() / 2];
  }

  double CopyRate() override {
    void *from = nullptr, *to = nullptr;
    double rate = -1;
    if (cudaMalloc(&from, kCopyBytes) == cudaSuccess &&
        cudaMalloc(&to, kCopyBytes) == cudaSuccess) {
      const auto stream = static_cast<cudaStream_t>(memory_.stream());
      const double us = Microseconds([&] {
        return static_cast<int>(
            cudaMemcpyAsync(to, from, kCopyBytes, cudaMemcpyDeviceToDevice, stream));
      });
      if (us > 0) rate = 2.0 * kCopyBytes / (us * 1e-6);
    }
    cudaFree(from);
    cudaFree(to);
    return rate;
  }

 private:
  const int count_;
  CudaMemory memory_;
  Events events_;
  Target target_;
};

}  // namespace

std::unique_ptr<Gpu> OpenGpu(std::string& why) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error == cudaSuccess) error = cudaSetDevice(0);
  if (error == cudaSuccess) error = cudaFree(nullptr);  // makes the context
  if (error != cudaSuccess) {
    why = absl::StrCat("No GPU can be used: ", cudaGetErrorName(error), ", ",
                       cudaGetErrorString(error));
    return nullptr;
  }
  return std::make_unique<CudaGpu>(count);
}

int GpuCount() { return worker::CudaDeviceCount(); }

absl::StatusOr<std::unique_ptr<worker::Device>> OpenDevice(int index) {
  return worker::MakeCudaDevice(index);
}

}  // namespace flotilla::kernels::cuda
