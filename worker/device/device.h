// Device: the memory of one GPU, its queues of work, and what the host knows of their progress.
//
// There are two queues, each of which does its work in order: that of computing, and that of
// copies which run beside it. The calls that enqueue return at once and cannot fail. The first
// error of the device stays: status() and every Synchronize return it, and the owner makes another
// device in another process, since no work can be trusted any more.
//
// Work that one queue enqueues reads what the other one wrote only behind a Wait for an event, and
// the host only behind a Synchronize. Memory that work reads or writes stays as it is until that
// work is done: also host memory, and its contents.
//
// Any thread may use a device.
//
// Implementations: that of CUDA (cuda_device.h), and one that runs on the CPU, for tests
// (simulated_device.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/ops.h"

namespace flotilla::worker {

class Device {
 public:
  enum class Queue : std::uint8_t { kCompute, kCopy };
  static constexpr int kQueues = 2;

  // A point in a queue. Never given out: 0.
  using Event = std::uint64_t;

  // Memory of the device, or pinned memory of the host. It is given back when the owner drops it,
  // which is after all work with it. The device outlives it.
  class Memory {
   public:
    Memory() = default;
    Memory(Device* device, std::byte* data, std::size_t bytes, bool pinned)
        : device_(device), data_(data), bytes_(bytes), pinned_(pinned) {}
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
      std::swap(device_, other.device_);
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      std::swap(pinned_, other.pinned_);
      return *this;
    }
    ~Memory() {
      if (data_ != nullptr) device_->Free(data_, pinned_);
    }

    std::byte* data() const { return data_; }
    template <typename T>
    T* as() const {
      return reinterpret_cast<T*>(data_);
    }
    std::size_t bytes() const { return bytes_; }

   private:
    Device* device_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    bool pinned_ = false;
  };

  virtual ~Device() = default;

  // E.g. "NVIDIA H100 80GB HBM3".
  virtual const std::string& name() const = 0;
  // The compute capability, e.g. 90 for 9.0. Kernels are compiled for each by itself.
  virtual int capability() const = 0;
  // Names the memory: two devices have the same id where they are the same GPU of the same host.
  virtual const std::string& id() const = 0;

  // At least 1 byte, 256-byte aligned. What it holds means nothing. RESOURCE_EXHAUSTED: there is
  // not enough memory; the message says how much is free.
  virtual absl::StatusOr<Memory> Allocate(std::size_t bytes) = 0;
  virtual absl::StatusOr<Memory> AllocatePinned(std::size_t bytes) = 0;
  virtual std::int64_t FreeBytes() = 0;
  virtual std::int64_t TotalBytes() = 0;

  // From pinned memory to the device, and back; within the device; `byte` into every byte.
  virtual void Upload(Queue queue, void* to, const void* from, std::size_t bytes) = 0;
  virtual void Download(Queue queue, void* to, const void* from, std::size_t bytes) = 0;
  virtual void Copy(Queue queue, void* to, const void* from, std::size_t bytes) = 0;
  virtual void Fill(Queue queue, void* to, int byte, std::size_t bytes) = 0;
  // Launches kernels: `launch` calls ops on the stream, and returns their errors. It runs now or
  // later, once.
  using Launches = std::function<int(const kernels::cuda::Ops&, kernels::cuda::Stream)>;
  virtual void Launch(Queue queue, Launches launch) = 0;

  // The point behind all work of the queue so far.
  virtual Event Record(Queue queue) = 0;
  // The queue's later work begins behind the event, which is forgotten.
  virtual void Wait(Queue queue, Event event) = 0;
  // Waits until the event has happened, and forgets it. INTERNAL: the device has failed.
  virtual absl::Status Synchronize(Event event) = 0;
  virtual absl::Status status() = 0;

 protected:
  friend class Memory;
  virtual void Free(std::byte* data, bool pinned) = 0;
};

}  // namespace flotilla::worker
