// GroupLink: joins a worker group with the one scheduler that may use it.
//
// A scheduler only sees epochs that no other scheduler has used. When a scheduler attaches
// during a used epoch, or goes away, the link ends that epoch, so the next one begins with
// no sequences. Before the worker ends on purpose, the link lets the group finish what it
// computes and says that it stops. Any thread may call it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/types/executor.h"
#include "proto/codec/group.h"

namespace flotilla::worker {

// The scheduler's end, as the link sees it. The link calls it under its lock, so it must
// not block or call back.
class AttachedScheduler {
 public:
  virtual ~AttachedScheduler() = default;
  virtual void Send(const codec::GroupEvent& event) = 0;
  // Ends the stream when all events sent have been written.
  virtual void Close() = 0;
};

class GroupLink final : public ExecutorListener {
 public:
  // The caller starts `executor` with this link as its listener. `executor` outlives the
  // link.
  explicit GroupLink(StepExecutor* executor) : executor_(executor) {}

  // ALREADY_EXISTS: another scheduler is attached. UNAVAILABLE: the worker stops. The caller must
  // detach a scheduler before it destroys it.
  absl::Status Attach(AttachedScheduler* scheduler) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends the scheduler no more events. Ignores a scheduler that is not attached.
  void Detach(AttachedScheduler* scheduler) ABSL_LOCKS_EXCLUDED(mu_);
  // Ignores commands of a scheduler that is not attached, and commands for epochs that were
  // not announced to it.
  void Handle(AttachedScheduler* scheduler, codec::GroupCommand command) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes no more plans. When those that were taken are answered, it says that the worker stops
  // (Lost, kStopped), which blames nobody, and calls `done`, which may be at once. `done` must not
  // block or call back. Called once.
  void Drain(std::function<void()> done) ABSL_LOCKS_EXCLUDED(mu_);
  // After Drain: says that the worker stops even if plans are not answered yet.
  void EndDrain() ABSL_LOCKS_EXCLUDED(mu_);

  void OnReady(Epoch epoch, const ExecutorDescription& description) override;
  void OnResult(StepResult result) override;
  void OnLost(const Lost& lost) override;

 private:
  void Announce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndUsedEpoch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishDrain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  StepExecutor* const executor_;
  absl::Mutex mu_;
  AttachedScheduler* scheduler_ ABSL_GUARDED_BY(mu_) = nullptr;
  // The current epoch, from its Ready to its Lost.
  std::optional<codec::GroupReady> ready_ ABSL_GUARDED_BY(mu_);
  bool used_ ABSL_GUARDED_BY(mu_) = false;             // it got a plan
  bool announced_ ABSL_GUARDED_BY(mu_) = false;        // to the attached scheduler
  std::uint32_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;  // plans of the epoch
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> drained_ ABSL_GUARDED_BY(mu_);  // until it was called
};

}  // namespace flotilla::worker
