// BoundedQueue: many producers, any number of consumers, a fixed capacity and
// producers that are refused rather than blocked.
//
// Used wherever input can reach a thread: the tokenizer pool, the engine's
// inbox, the executor's plans. Close() wakes all consumers; what is queued is
// still handed out.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace flotilla {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}

  // Returns false and leaves `item` untouched when the queue is full or closed.
  bool TryPush(T&& item) {
    absl::MutexLock lock(&mu_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  // Waits for an item. Returns none when the queue is closed and empty.
  std::optional<T> Pop() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &BoundedQueue::HasItemOrClosed));
    return TakeFront();
  }

  // Takes everything that is queued, without waiting.
  std::vector<T> Drain() {
    absl::MutexLock lock(&mu_);
    std::vector<T> all(std::make_move_iterator(items_.begin()),
                       std::make_move_iterator(items_.end()));
    items_.clear();
    return all;
  }

  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }

  std::size_t size() const {
    absl::MutexLock lock(&mu_);
    return items_.size();
  }
  std::size_t capacity() const { return capacity_; }

 private:
  bool HasItemOrClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return closed_ || !items_.empty();
  }
  std::optional<T> TakeFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const std::size_t capacity_;
  mutable absl::Mutex mu_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace flotilla
