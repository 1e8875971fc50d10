// ExecutorRecorder: an ExecutorListener that keeps the events that it gets, lets a test
// wait for them, and checks the order that common/types/executor.h promises.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/types/executor.h"

namespace flotilla::testing {

class ExecutorRecorder : public ExecutorListener {
 public:
  void OnReady(Epoch epoch, const ExecutorDescription& description) override {
    {
      absl::MutexLock lock(&mu_);
      EXPECT_FALSE(current_.has_value()) << "Ready within an epoch";
      EXPECT_TRUE(ready_.empty() || epoch > ready_.back()) << "epochs ascend";
      current_ = epoch;
      next_step_ = Step(1);
      ready_.push_back(epoch);
      description_ = description;
    }
    if (on_ready) on_ready();
  }
  void OnResult(StepResult result) override {
    absl::MutexLock lock(&mu_);
    EXPECT_EQ(current_, result.epoch) << "Result outside its epoch";
    EXPECT_EQ(result.step, next_step_) << "steps without gaps";
    next_step_ = Step(next_step_.value() + 1);
    results_.push_back(std::move(result));
  }
  void OnLost(const Lost& lost) override {
    absl::MutexLock lock(&mu_);
    EXPECT_EQ(current_, lost.epoch) << "Lost outside its epoch";
    current_.reset();
    lost_.push_back(lost);
  }

  // Each function waits for the event with this number (from 1), a minute at most.
  Epoch WaitReady(std::size_t number) { return Wait(ready_, number); }
  StepResult WaitResult(std::size_t number) { return Wait(results_, number); }
  Lost WaitLost(std::size_t number) { return Wait(lost_, number); }

  ExecutorDescription description() const {
    absl::MutexLock lock(&mu_);
    return description_;
  }
  std::size_t result_count() const {
    absl::MutexLock lock(&mu_);
    return results_.size();
  }
  // The number of events of all kinds.
  std::size_t event_count() const {
    absl::MutexLock lock(&mu_);
    return ready_.size() + results_.size() + lost_.size();
  }

  // Called at the end of every OnReady, unlocked. Set before Start.
  std::function<void()> on_ready;

 private:
  template <class T>
  T Wait(const std::vector<T>& events, std::size_t number) {
    absl::MutexLock lock(&mu_);
    const auto there = [&] { return events.size() >= number; };
    const bool came = mu_.AwaitWithTimeout(absl::Condition(&there), absl::Minutes(1));
    EXPECT_TRUE(came) << "event " << number << " did not come";
    return came ? events[number - 1] : T{};
  }

  mutable absl::Mutex mu_;
  std::optional<Epoch> current_ ABSL_GUARDED_BY(mu_);
  Step next_step_ ABSL_GUARDED_BY(mu_);
  ExecutorDescription description_ ABSL_GUARDED_BY(mu_);
  std::vector<Epoch> ready_ ABSL_GUARDED_BY(mu_);
  std::vector<StepResult> results_ ABSL_GUARDED_BY(mu_);
  std::vector<Lost> lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::testing
