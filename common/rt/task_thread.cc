#include "common/rt/task_thread.h"

#include "common/rt/steady_now.h"

namespace flotilla {

TaskThread::TaskThread() : thread_([this] { Loop(); }) {}

TaskThread::~TaskThread() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  thread_.join();
}

void TaskThread::Post(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  posted_.push_back(std::move(work));
}

TaskThread::Timer TaskThread::After(absl::Duration delay, std::function<void()> work) {
  const Timer timer(SteadyNow() + delay, next_timer_++);
  timers_.emplace(timer, std::move(work));
  return timer;
}

void TaskThread::Cancel(const Timer& timer) { timers_.erase(timer); }

void TaskThread::Loop() {
  std::vector<std::function<void()>> batch;
  while (Take(batch)) {
    for (auto& work : batch) {
      work();
      work = nullptr;  // what it holds must not outlive its turn
    }
    batch.clear();
    FireTimers();
  }
}

bool TaskThread::Take(std::vector<std::function<void()>>& batch) {
  const absl::Time deadline =
      timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first.first;
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(this, &TaskThread::HasWorkOrClosed), deadline - SteadyNow());
  if (posted_.empty() && closed_) return false;
  batch.swap(posted_);
  return true;
}

void TaskThread::FireTimers() {
  while (!timers_.empty() && timers_.begin()->first.first <= SteadyNow()) {
    auto due = timers_.extract(timers_.begin());
    due.mapped()();
  }
}

}  // namespace flotilla
