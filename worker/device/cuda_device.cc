#include "worker/device/cuda_device.h"

#include <cuda_runtime_api.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace flotilla::worker {
namespace {

// The oldest GPUs that kernels are built for (sm_80).
constexpr int kOldestMajor = 8;

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {}

  absl::Status Open() {
    // It makes the context, which needs some hundred MiB.
    const cudaError_t error = cudaSetDevice(index_);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return absl::ResourceExhaustedError(
          absl::StrCat("GPU ", index_, " has no room for another process"));
    }
    if (error == cudaErrorDevicesUnavailable) {  // another process has it for itself
      return absl::ResourceExhaustedError(
          absl::StrCat("GPU ", index_, " takes no other process: ", cudaGetErrorString(error)));
    }
    Note(error, "cudaSetDevice");
    cudaDeviceProp properties;
    Note(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
    // The host sleeps while it waits.
    for (cudaStream_t& stream : streams_) {
      Note(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    if (absl::Status failed = status(); !failed.ok()) return failed;
    name_ = properties.name;
    capability_ = 10 * properties.major + properties.minor;
    id_.assign(properties.uuid.bytes, sizeof properties.uuid.bytes);
    if (properties.major < kOldestMajor) {
      return absl::FailedPreconditionError(
          absl::StrCat(name_, " has compute capability ", properties.major, ".", properties.minor,
                       ", and flotilla needs ", kOldestMajor, ".0 or later"));
    }
    return absl::OkStatus();
  }

  ~CudaDevice() override {
    Use();
    for (const cudaStream_t stream : streams_) {
      if (stream != nullptr) cudaStreamDestroy(stream);
    }
    absl::MutexLock lock(&mu_);
    for (const auto& [number, event] : events_) cudaEventDestroy(event);
    for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
  }

  const std::string& name() const override { return name_; }
  int capability() const override { return capability_; }
  const std::string& id() const override { return id_; }

  absl::StatusOr<Memory> Allocate(std::size_t bytes) override {
    Use();
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // it is no error of the work
      return absl::ResourceExhaustedError(absl::StrCat(name_, " has no room for ", bytes,
                                                       " bytes; ", FreeBytes(), " bytes are free"));
    }
    Note(error, "cudaMalloc");
    if (absl::Status failed = status(); !failed.ok()) return failed;
    return Memory(this, static_cast<std::byte*>(data), bytes, /*pinned=*/false);
  }

  absl::StatusOr<Memory> AllocatePinned(std::size_t bytes) override {
    Use();
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return absl::ResourceExhaustedError(
          absl::StrCat("the host has no room for ", bytes, " bytes of pinned memory"));
    }
    Note(error, "cudaHostAlloc");
    if (absl::Status failed = status(); !failed.ok()) return failed;
    return Memory(this, static_cast<std::byte*>(data), bytes, /*pinned=*/true);
  }

  std::int64_t FreeBytes() override { return MemoryInfo().first; }
  std::int64_t TotalBytes() override { return MemoryInfo().second; }

  void Upload(Queue queue, void* to, const void* from, std::size_t bytes) override {
    CopyBytes(queue, to, from, bytes, cudaMemcpyHostToDevice);
  }
  void Download(Queue queue, void* to, const void* from, std::size_t bytes) override {
    CopyBytes(queue, to, from, bytes, cudaMemcpyDeviceToHost);
  }
  void Copy(Queue queue, void* to, const void* from, std::size_t bytes) override {
    CopyBytes(queue, to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  void Fill(Queue queue, void* to, int byte, std::size_t bytes) override {
    Use();
    Note(cudaMemsetAsync(to, byte, bytes, stream(queue)), "cudaMemsetAsync");
  }
  void Launch(Queue queue, Launches launch) override {
    Use();
    Note(static_cast<cudaError_t>(launch(kernels::cuda::DeviceOps(), stream(queue))), "a kernel");
  }

  Event Record(Queue queue) override {
    Use();
    absl::MutexLock lock(&mu_);
    cudaEvent_t event = nullptr;
    if (spare_.empty()) {
      NoteLocked(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming),
                 "cudaEventCreate");
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    if (event != nullptr) NoteLocked(cudaEventRecord(event, stream(queue)), "cudaEventRecord");
    events_.emplace(++last_event_, event);
    return last_event_;
  }

  void Wait(Queue queue, Event event) override {
    Use();
    absl::MutexLock lock(&mu_);
    const auto at = events_.find(event);
    if (at == events_.end()) return;
    const cudaEvent_t own = at->second;
    events_.erase(at);
    if (own == nullptr) return;
    // The call has read the event, which may be recorded again.
    NoteLocked(cudaStreamWaitEvent(stream(queue), own, 0), "cudaStreamWaitEvent");
    spare_.push_back(own);
  }

  absl::Status Synchronize(Event event) override {
    Use();
    cudaEvent_t own = nullptr;
    {
      absl::MutexLock lock(&mu_);
      const auto at = events_.find(event);
      if (at == events_.end()) return failure_;
      own = at->second;
      events_.erase(at);
    }
    const cudaError_t error =
        own == nullptr ? cudaErrorInvalidResourceHandle : cudaEventSynchronize(own);
    absl::MutexLock lock(&mu_);
    NoteLocked(error, "the GPU");
    if (own != nullptr) spare_.push_back(own);
    return failure_;
  }

  absl::Status status() override {
    absl::MutexLock lock(&mu_);
    return failure_;
  }

 private:
  // The runtime has a current GPU for each thread.
  void Use() { Note(cudaSetDevice(index_), "cudaSetDevice"); }
  // Bytes that are free, and all.
  std::pair<std::int64_t, std::int64_t> MemoryInfo() {
    Use();
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return {};
    return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
  }
  cudaStream_t stream(Queue queue) const { return streams_[static_cast<int>(queue)]; }

  void CopyBytes(Queue queue, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    Use();
    Note(cudaMemcpyAsync(to, from, bytes, kind, stream(queue)), "cudaMemcpyAsync");
  }

  void Free(std::byte* data, bool pinned) override {
    Use();
    (void)(pinned ? cudaFreeHost(data) : cudaFree(data));
  }

  void Note(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    absl::MutexLock lock(&mu_);
    NoteLocked(error, what);
  }
  void NoteLocked(cudaError_t error, const char* what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (error == cudaSuccess || !failure_.ok()) return;
    failure_ =
        absl::InternalError(absl::StrCat("CUDA failed in ", what, ": ", cudaGetErrorString(error),
                                         " (error ", static_cast<int>(error), ")"));
  }

  const int index_;
  std::string name_ = "GPU";
  int capability_ = 0;
  std::string id_;  // its 16 bytes
  cudaStream_t streams_[kQueues] = {};

  absl::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  Event last_event_ ABSL_GUARDED_BY(mu_) = 0;
  std::unordered_map<Event, cudaEvent_t> events_ ABSL_GUARDED_BY(mu_);
  std::vector<cudaEvent_t> spare_ ABSL_GUARDED_BY(mu_);
};

// CUDA's own text for a missing driver says that its version is too low.
std::string WhyNone(cudaError_t error) {
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess) {
    if (driver == 0) return "there is no NVIDIA driver on this machine";
    const auto version = [](int number) {
      return absl::StrCat(number / 1000, ".", number % 1000 / 10);
    };
    return absl::StrCat("the driver is for CUDA ", version(driver), ", and flotilla needs one for ",
                        version(CUDART_VERSION), " or later");
  }
  return absl::StrCat(cudaGetErrorString(error), " (error ", static_cast<int>(error), ")");
}

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorSystemNotReady) {  // services of the machine are still starting
    return absl::ResourceExhaustedError(
        absl::StrCat("the GPUs are not ready: ", cudaGetErrorString(error)));
  }
  if (error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("no GPU can be used: ", WhyNone(error)));
  }
  if (index >= count) {
    return absl::UnavailableError(
        absl::StrCat("there is no GPU ", index, "; the driver shows ", count, ", counted from 0"));
  }
  auto device = std::make_unique<CudaDevice>(index);
  const absl::Status status = device->Open();
  if (!status.ok()) return status;
  return device;
}

}  // namespace flotilla::worker
