// Mutex: absl::Mutex's interface, so far as it is used here, over the standard
// library's.
//
// Why not Abseil's own: the one that distributions ship is not built for
// ThreadSanitizer, which then sees no order between threads at all and reports
// every guarded member. Clang checks the annotations as usual.
//
//   absl::Condition ready(this, &Queue::HasItem);   // evaluated under the lock
//   MutexLock lock(&mu_);
//   mu_.Await(ready);
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace flotilla {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  // Lets everyone in Await look again: what was done under the lock may be what
  // they wait for.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    if (waiters_ > 0) changed_.notify_all();
    mu_.unlock();
  }

  // Releases the lock until `condition` holds, and holds it again then.
  void Await(const absl::Condition& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    AwaitWithDeadline(condition, absl::InfiniteFuture());
  }

  // The same until `deadline` at most; whether the condition holds.
  bool AwaitWithDeadline(const absl::Condition& condition, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    ++waiters_;
    bool holds = condition.Eval();
    while (!holds) {
      if (deadline == absl::InfiniteFuture()) {
        changed_.wait(lock);
      } else {
        const absl::Duration left = deadline - absl::Now();
        if (left <= absl::ZeroDuration()) break;
        // In parts of an hour: no deadline overflows the system's clock.
        changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
      }
      holds = condition.Eval();
    }
    --waiters_;
    lock.release();
    return holds;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::uint32_t waiters_ = 0;  // in Await; guarded by mu_
};

// Holds a Mutex for a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

}  // namespace flotilla
