// The memory of the simulated device: each allocation is a buffer of its own on the heap, of
// exactly the size that was asked for, so that the address sanitizer sees what kernels do outside
// of it. One thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/simulated/machine.h"
#include "tests/kernels/cuda/op_cases.h"

namespace flotilla::kernels::cuda {

class SimulatedMemory final : public DeviceMemory {
 public:
  // `seed` chooses the order of threads (SimulatedStream).
  explicit SimulatedMemory(uint64_t seed = 0) { set_seed(seed); }

  // Also forgets the fault of a kernel, so that later launches run.
  void set_seed(uint64_t seed) { stream_ = {.seed = seed, .fault = {}}; }
  const simulated::SimulatedStream& simulated_stream() const { return stream_; }

  void* Allocate(size_t bytes) override {
    Buffer buffer(static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow)));
    if (buffer == nullptr) return nullptr;
    std::memset(buffer.get(), 0xFF, bytes);
    buffers_.push_back(std::move(buffer));
    return buffers_.back().get();
  }
  void FreeAll() override { buffers_.clear(); }
  int Upload(void* to, const void* from, size_t bytes) override { return Copy(to, from, bytes); }
  int Download(void* to, const void* from, size_t bytes) override { return Copy(to, from, bytes); }
  Stream stream() override { return &stream_; }
  std::string Error() override { return stream_.fault ? Describe(*stream_.fault) : "no error"; }

 private:
  // No GPU aligns allocations less. More would hide what a kernel assumes.
  static constexpr std::align_val_t kAlignment{256};

  struct Free {
    void operator()(std::byte* buffer) const { ::operator delete(buffer, kAlignment); }
  };
  using Buffer = std::unique_ptr<std::byte, Free>;

  static int Copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return 0;
  }

  simulated::SimulatedStream stream_;
  std::vector<Buffer> buffers_;
};

}  // namespace flotilla::kernels::cuda
