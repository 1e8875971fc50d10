// ObservedExecutor: a StepExecutor that shows each plan to an observer before another executor
// gets it, so that the executor knows of no logs.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "common/types/executor.h"

namespace flotilla::cli {

class ObservedExecutor final : public StepExecutor {
 public:
  // `inner` is not owned and outlives this object. `on_plan` is called on the caller's thread
  // and must not block; it may be empty.
  ObservedExecutor(StepExecutor* inner, std::function<void(const StepPlan&)> on_plan)
      : inner_(inner), on_plan_(std::move(on_plan)) {}

  absl::Status Start(ExecutorListener* listener) override { return inner_->Start(listener); }
  absl::Status Execute(StepPlan plan) override {
    if (on_plan_) on_plan_(plan);
    return inner_->Execute(std::move(plan));
  }
  void EndEpoch(Epoch epoch) override { inner_->EndEpoch(epoch); }
  void Stop() override { inner_->Stop(); }

 private:
  StepExecutor* const inner_;
  const std::function<void(const StepPlan&)> on_plan_;
};

}  // namespace flotilla::cli
