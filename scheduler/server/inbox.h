// EngineInbox: how other threads reach the engine loop.
//
// One queue, so that what a thread sends arrives in its order. New requests are
// bounded and refused when there are too many; everything else is bounded by
// what was admitted (a replay or a cancel per request, lag + 1 results, one Ready
// or Lost at a time) and always taken. Nobody blocks but the loop itself.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/types/engine.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "common/types/request.h"

namespace flotilla {

struct SubmitMessage {
  TokenizedRequest request;
  std::shared_ptr<EventSink> sink;
};
struct ReadyMessage {
  Epoch epoch;
  ExecutorDescription description;
};
struct DrainMessage {
  std::function<void()> done;
};
using EngineMessage =
    std::variant<SubmitMessage, CancelRequest, StepResult, ReadyMessage, Lost, DrainMessage>;

class EngineInbox {
 public:
  enum class Sent { kYes, kFull, kClosed };

  explicit EngineInbox(std::size_t max_submits) : max_submits_(max_submits) {}

  // Any thread. kFull concerns new requests only; unless kYes, `message` is
  // untouched.
  Sent Send(EngineMessage&& message) {
    const auto* submission = std::get_if<SubmitMessage>(&message);
    const bool submit = submission != nullptr && submission->request.attempt == Attempt(0);
    absl::MutexLock lock(&mu_);
    if (closed_) return Sent::kClosed;
    if (submit && submits_ >= max_submits_) return Sent::kFull;
    submits_ += submit;
    messages_.push_back(std::move(message));
    return Sent::kYes;
  }

  // The loop: sleeps until there is something, `deadline` passes or the inbox
  // is closed, then takes everything.
  std::vector<EngineMessage> TakeAll(absl::Time deadline) {
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithDeadline(absl::Condition(this, &EngineInbox::HasSomething), deadline);
    submits_ = 0;
    return std::exchange(messages_, {});
  }

  // What is inside can still be taken; nothing more comes.
  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  bool closed() const {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  bool HasSomething() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return closed_ || !messages_.empty();
  }

  const std::size_t max_submits_;
  mutable absl::Mutex mu_;
  std::vector<EngineMessage> messages_ ABSL_GUARDED_BY(mu_);
  std::size_t submits_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace flotilla
