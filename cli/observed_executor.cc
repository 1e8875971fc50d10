#include "cli/observed_executor.h"

#include <utility>

namespace flotilla {

ObservedExecutor::ObservedExecutor(StepExecutor* inner, Observers observers)
    : inner_(inner), observers_(std::move(observers)) {}

absl::Status ObservedExecutor::Start(ExecutorListener* listener) {
  listener_ = listener;
  return inner_->Start(this);
}

absl::Status ObservedExecutor::Execute(StepPlan plan) {
  if (observers_.on_plan) observers_.on_plan(plan);
  return inner_->Execute(std::move(plan));
}

void ObservedExecutor::EndEpoch(Epoch epoch) { inner_->EndEpoch(epoch); }

void ObservedExecutor::Stop() { inner_->Stop(); }

void ObservedExecutor::OnReady(Epoch epoch, const ExecutorDescription& description) {
  listener_->OnReady(epoch, description);
}

void ObservedExecutor::OnResult(StepResult result) {
  if (observers_.on_result) observers_.on_result(result);
  listener_->OnResult(std::move(result));
}

void ObservedExecutor::OnLost(const Lost& lost) { listener_->OnLost(lost); }

}  // namespace flotilla
