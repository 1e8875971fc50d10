// Arena: memory of one step, on the device or pinned on the host. It is taken piece by piece, and
// all of it is given back at once when the step is finished.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/device/device.h"

namespace flotilla::worker {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  Arena(Device& device, bool pinned) : device_(device), pinned_(pinned) {}

  // `count` values, 256-byte aligned, that stay until Reset. Null where there is no memory:
  // status() says so.
  template <typename T>
  T* Take(std::size_t count) {
    return reinterpret_cast<T*>(TakeBytes(std::max<std::size_t>(count, 1) * sizeof(T)));
  }
  // Makes memory, once, before anything is taken: pieces of `bytes` in all, each rounded up to
  // kAlignment, then need no other. RESOURCE_EXHAUSTED: there is not enough.
  absl::Status Reserve(std::size_t bytes) {
    (void)TakeBytes(bytes);
    Reset();
    return status_;
  }
  // Nobody uses what was taken any more. The memory is kept for the next step.
  void Reset() {
    chunk_ = 0;
    used_ = 0;
  }
  const absl::Status& status() const { return status_; }

 private:
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

  std::byte* TakeBytes(std::size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    for (; chunk_ < chunks_.size(); ++chunk_, used_ = 0) {
      if (chunks_[chunk_].bytes() - used_ < bytes) continue;
      return chunks_[chunk_].data() + std::exchange(used_, used_ + bytes);
    }
    const std::size_t size = std::max(bytes, kChunkBytes);
    auto memory = pinned_ ? device_.AllocatePinned(size) : device_.Allocate(size);
    if (!memory.ok()) {
      status_ = memory.status();
      return nullptr;
    }
    chunks_.push_back(*std::move(memory));
    used_ = bytes;
    return chunks_.back().data();
  }

  Device& device_;
  const bool pinned_;
  std::vector<Device::Memory> chunks_;
  std::size_t chunk_ = 0;
  std::size_t used_ = 0;
  absl::Status status_;
};

}  // namespace flotilla::worker
