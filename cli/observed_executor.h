// ObservedExecutor: a StepExecutor that passes everything through to another
// one and shows each result to an observer on its way, so that neither the
// scheduler nor the worker knows of metrics.
#pragma once

#include <functional>

#include "common/types/executor.h"

namespace flotilla {

class ObservedExecutor final : public StepExecutor, private ExecutorListener {
 public:
  // Sees each result before the scheduler does, on the executor's thread; must
  // not block.
  using Observer = std::function<void(const StepResult&)>;

  // `inner` is not owned and outlives this object.
  ObservedExecutor(StepExecutor* inner, Observer observer);

  absl::Status Start(ExecutorListener* listener) override;
  absl::Status Execute(StepPlan plan) override;
  void EndEpoch(Epoch epoch) override;
  void Stop() override;

 private:
  void OnReady(Epoch epoch, const ExecutorDescription& description) override;
  void OnResult(StepResult result) override;
  void OnLost(const Lost& lost) override;

  StepExecutor* const inner_;
  const Observer observer_;
  ExecutorListener* listener_ = nullptr;  // set before inner_->Start
};

}  // namespace flotilla
