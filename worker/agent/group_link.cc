#include "worker/agent/group_link.h"

#include <utility>
#include <variant>

namespace flotilla::worker {

absl::Status GroupLink::Attach(AttachedScheduler* scheduler) {
  absl::MutexLock lock(&mu_);
  if (draining_) return absl::UnavailableError("the worker stops");
  if (scheduler_ != nullptr) {
    return absl::AlreadyExistsError("another scheduler is attached to this worker group");
  }
  scheduler_ = scheduler;
  Announce();
  return absl::OkStatus();
}

void GroupLink::Detach(AttachedScheduler* scheduler) {
  absl::MutexLock lock(&mu_);
  if (scheduler_ != scheduler) return;
  scheduler_ = nullptr;
  announced_ = false;
  EndUsedEpoch();
  if (draining_) FinishDrain();
}

void GroupLink::Handle(AttachedScheduler* scheduler, codec::GroupCommand command) {
  absl::MutexLock lock(&mu_);
  if (scheduler_ != scheduler || !announced_) return;
  if (const auto* end = std::get_if<codec::EndEpoch>(&command)) {
    executor_->EndEpoch(end->epoch);
    return;
  }
  if (draining_) return;  // its Lost comes
  const Epoch epoch = ready_->epoch;
  used_ = true;
  const absl::Status sent = executor_->Execute(std::get<StepPlan>(std::move(command)));
  if (sent.ok()) ++unanswered_;
  // With FAILED_PRECONDITION the epoch's Lost is already on the way.
  if (!sent.ok() && !absl::IsFailedPrecondition(sent)) executor_->EndEpoch(epoch);
}

void GroupLink::OnReady(Epoch epoch, const ExecutorDescription& description) {
  absl::MutexLock lock(&mu_);
  ready_ = codec::GroupReady{.epoch = epoch, .description = description};
  used_ = false;
  unanswered_ = 0;
  Announce();
}

void GroupLink::OnResult(StepResult result) {
  absl::MutexLock lock(&mu_);
  if (unanswered_ > 0) --unanswered_;
  if (announced_) scheduler_->Send(codec::GroupEvent(std::move(result)));
  if (draining_ && unanswered_ == 0) FinishDrain();
}

void GroupLink::OnLost(const Lost& lost) {
  absl::MutexLock lock(&mu_);
  ready_.reset();
  unanswered_ = 0;
  if (std::exchange(announced_, false)) scheduler_->Send(codec::GroupEvent(lost));
  if (draining_) FinishDrain();
}

void GroupLink::Drain(std::function<void()> done) {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  drained_ = std::move(done);
  if (unanswered_ == 0 || !announced_) FinishDrain();
}

void GroupLink::EndDrain() {
  absl::MutexLock lock(&mu_);
  if (draining_) FinishDrain();
}

// Says that the worker stops, unless it was said.
void GroupLink::FinishDrain() {
  if (std::exchange(announced_, false)) {
    scheduler_->Send(codec::GroupEvent(Lost{.epoch = ready_->epoch,
                                            .cause = Lost::Cause::kStopped,
                                            .detail = "the worker was asked to stop",
                                            .started = {}}));
  }
  if (scheduler_ != nullptr) scheduler_->Close();
  if (const auto done = std::exchange(drained_, nullptr)) done();
}

// Announces the epoch, if there is one that no scheduler has used and the worker goes on.
void GroupLink::Announce() {
  if (draining_ || scheduler_ == nullptr || !ready_.has_value() || used_) return;
  announced_ = true;
  scheduler_->Send(codec::GroupEvent(*ready_));
}

void GroupLink::EndUsedEpoch() {
  if (ready_.has_value() && used_) executor_->EndEpoch(ready_->epoch);
}

}  // namespace flotilla::worker
