// LaneThread: the I/O thread of the gRPC front.
//
// gRPC's callbacks arrive on its own threads, several at a time; each of ours
// only posts here. So every call's state has one owner thread and no lock, and
// detokenization runs neither on gRPC's threads nor on the engine's. Idle, it
// sleeps.
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
#include "router/service.h"

namespace flotilla {

class LaneThread final : public Dispatcher {
 public:
  LaneThread();
  // Runs everything posted, also what that work posts; drops timers; joins.
  // No other thread may post any more.
  ~LaneThread() override;

  // The queue needs no bound of its own: what calls post is a few entries per
  // call, and what the engine posts is bounded by what was admitted.
  void Post(std::function<void()> work) override;

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

  // Of the thread alone.
  std::map<Timer, std::function<void()>> timers_;
  std::uint64_t next_timer_ = 0;

  std::thread thread_;  // last: starts when all else is there
};

}  // namespace flotilla
