// IoThread: the I/O thread of the gRPC frontend.
//
// gRPC's events arrive on the poller's thread, which must not block, so each call only posts
// them here. Thus every call's state has one owner thread and no lock, and detokenization
// runs neither on the poller's thread nor on the engine's. The queue needs no bound of its
// own: each call posts only a few entries, and the requests that were admitted bound what the
// engine posts.
#pragma once

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "common/rt/task_thread.h"
#include "router/service.h"

namespace flotilla::router {

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

}  // namespace flotilla::router
