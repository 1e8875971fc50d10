// IoThread: the I/O thread of the gRPC frontend.
//
// What gRPC has to say arrives on the poller's thread, which must not block; each call
// only posts it here. So every call's state has one owner thread and no lock, and
// detokenization runs neither on the poller's thread nor on the engine's. The queue needs
// no bound of its own: what calls post is a few entries per call, and what the engine
// posts is bounded by what was admitted.
#pragma once

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "common/rt/task_thread.h"
#include "router/service.h"

namespace flotilla {

class IoThread final : public Dispatcher {
 public:
  using Timer = TaskThread::Timer;

  void Post(std::function<void()> work) override { thread_.Post(std::move(work)); }
  // Called on the thread.
  Timer After(absl::Duration delay, std::function<void()> work) {
    return thread_.After(delay, std::move(work));
  }
  void Cancel(const Timer& timer) { thread_.Cancel(timer); }

 private:
  TaskThread thread_;
};

}  // namespace flotilla
