// MemoryBudget: the bytes that all connections of a process may hold together for one purpose.
// MemoryCharge: the bytes that one holder takes of it, given back when the charge is destroyed.
// May be used on any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace flotilla::router {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t limit) : left_(limit) {}

  // False, and nothing is taken, if fewer than `bytes` are left.
  [[nodiscard]] bool Take(std::size_t bytes) {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left < bytes) return false;
    } while (!left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed));
    return true;
  }
  void Give(std::size_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }
  std::size_t left() const { return left_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::size_t> left_;
};

class MemoryCharge {
 public:
  MemoryCharge() = default;
  // `budget` outlives it.
  explicit MemoryCharge(MemoryBudget* budget) : budget_(budget) {}
  MemoryCharge(MemoryCharge&& other) noexcept
      : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryCharge() {
    if (bytes_ > 0) budget_->Give(bytes_);
  }

  // Holds `bytes` from now on, or as many as before if those are more. False, and nothing
  // changes, if the budget has not enough left.
  [[nodiscard]] bool Grow(std::size_t bytes) {
    if (bytes <= bytes_) return true;
    if (!budget_->Take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  MemoryBudget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace flotilla::router
