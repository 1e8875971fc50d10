// TaskThread: one thread that runs posted work in order, and timers.
//
// Data that only this work uses needs no lock. An idle thread sleeps. Example:
//
//   TaskThread thread;
//   thread.Post([&] { timer = thread.After(absl::Seconds(1), [&] { OnTime(); }); });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace flotilla {

class TaskThread {
 public:
  TaskThread();
  // Runs all posted work and the work that it posts, drops timers and joins. No other
  // thread may post any more.
  ~TaskThread();

  // Runs `work` once, later, on the thread. Any thread may call it; it never blocks. The
  // queue has no limit, so callers must limit what they post.
  void Post(std::function<void()> work);

  // A timer that has fired or was cancelled is forgotten. All on the thread.
  using Timer = std::pair<absl::Time, std::uint64_t>;
  Timer After(absl::Duration delay, std::function<void()> work);
  void Cancel(const Timer& timer);

 private:
  void Loop();
  // Waits for work or the next timer, and takes all work. False: closed and
  // empty.
  bool Take(std::vector<std::function<void()>>& batch);
  void FireTimers();
  bool HasWorkOrClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return closed_ || !posted_.empty();
  }

  absl::Mutex mu_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  // Only the thread uses these.
  std::map<Timer, std::function<void()>> timers_;
  std::uint64_t next_timer_ = 0;

  std::thread thread_;  // last: starts when all else is there
};

}  // namespace flotilla
