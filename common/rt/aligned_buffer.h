// AlignedBuffer: a fixed array of T on cache-line boundaries, zeroed, without
// the copies and growth of a vector. One owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

namespace flotilla {

template <class T>
class AlignedBuffer {
  static_assert(std::is_trivial_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size)
      : size_(size), data_(new (std::align_val_t{kAlignment}) T[size]()) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t{kAlignment}); }
  };

  int64_t size_ = 0;
  std::unique_ptr<T[], Free> data_;
};

}  // namespace flotilla
