#include "cli/observed_executor.h"

#include <utility>

namespace flotilla {

ObservedExecutor::ObservedExecutor(StepExecutor* inner, Observer observer)
    : inner_(inner), observer_(std::move(observer)) {}

absl::Status ObservedExecutor::Start(ExecutorListener* listener) {
  listener_ = listener;
  return inner_->Start(this);
}

absl::Status ObservedExecutor::Execute(StepPlan plan) { return inner_->Execute(std::move(plan)); }

void ObservedExecutor::EndEpoch(Epoch epoch) { inner_->EndEpoch(epoch); }

void ObservedExecutor::Stop() { inner_->Stop(); }

void ObservedExecutor::OnReady(Epoch epoch, const ExecutorDescription& description) {
  listener_->OnReady(epoch, description);
}

void ObservedExecutor::OnResult(StepResult result) {
  observer_(result);
  listener_->OnResult(std::move(result));
}

void ObservedExecutor::OnLost(const Lost& lost) { listener_->OnLost(lost); }

}  // namespace flotilla
