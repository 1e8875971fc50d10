// ObservedExecutor: a StepExecutor that passes everything through to another
// one and shows plans or results to an observer on their way, so that neither
// the scheduler nor the worker knows of metrics and logs.
#pragma once

#include <functional>

#include "common/types/executor.h"

namespace flotilla {

class ObservedExecutor final : public StepExecutor, private ExecutorListener {
 public:
  // Each may be empty, and must not block.
  struct Observers {
    // Called before the executor gets the plan, on the caller's thread.
    std::function<void(const StepPlan&)> on_plan;
    // Called before the scheduler gets the result, on the executor's thread.
    std::function<void(const StepResult&)> on_result;
  };

  // `inner` is not owned and outlives this object.
  ObservedExecutor(StepExecutor* inner, Observers observers);

  absl::Status Start(ExecutorListener* listener) override;
  absl::Status Execute(StepPlan plan) override;
  void EndEpoch(Epoch epoch) override;
  void Stop() override;

 private:
  void OnReady(Epoch epoch, const ExecutorDescription& description) override;
  void OnResult(StepResult result) override;
  void OnLost(const Lost& lost) override;

  StepExecutor* const inner_;
  const Observers observers_;
  ExecutorListener* listener_ = nullptr;  // set before inner_->Start
};

}  // namespace flotilla
