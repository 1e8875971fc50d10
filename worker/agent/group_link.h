// GroupLink: joins a worker group with the one scheduler that may use it.
//
// A scheduler sees epochs from its first Ready on, and only such that nobody used
// before: when it attaches to a used one, or goes away, that epoch is ended, so its
// successor begins with empty sequences. Any thread.
#pragma once

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/types/executor.h"
#include "proto/codec/group.h"

namespace flotilla {

// The scheduler's end, as the link sees it. Called under the link's lock: must not
// block or call back.
class AttachedScheduler {
 public:
  virtual ~AttachedScheduler() = default;
  virtual void Send(const GroupEvent& event) = 0;
};

class GroupLink final : public ExecutorListener {
 public:
  // `executor` is to be started with this as its listener, and outlives it.
  explicit GroupLink(StepExecutor* executor) : executor_(executor) {}

  // ALREADY_EXISTS: another one is attached. What is attached must be detached before
  // it goes.
  absl::Status Attach(AttachedScheduler* scheduler) ABSL_LOCKS_EXCLUDED(mu_);
  // No event is sent to it any more. What is not attached is ignored.
  void Detach(AttachedScheduler* scheduler) ABSL_LOCKS_EXCLUDED(mu_);
  // Commands of a scheduler that is not attached, and of epochs that it was not sent
  // of, are ignored.
  void Handle(AttachedScheduler* scheduler, GroupCommand command) ABSL_LOCKS_EXCLUDED(mu_);

  void OnReady(Epoch epoch, const ExecutorDescription& description) override;
  void OnResult(StepResult result) override;
  void OnLost(const Lost& lost) override;

 private:
  void Announce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndUsedEpoch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  StepExecutor* const executor_;
  absl::Mutex mu_;
  AttachedScheduler* scheduler_ ABSL_GUARDED_BY(mu_) = nullptr;
  // The current epoch, from its Ready to its Lost.
  std::optional<GroupReady> ready_ ABSL_GUARDED_BY(mu_);
  bool used_ ABSL_GUARDED_BY(mu_) = false;       // it got a plan
  bool announced_ ABSL_GUARDED_BY(mu_) = false;  // the attached scheduler of it
};

}  // namespace flotilla
