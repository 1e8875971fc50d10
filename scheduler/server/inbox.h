// EngineInbox: the queue by which other threads send messages to the engine loop.
//
// There is one queue, so that the messages of a thread arrive in the order in which it
// sent them. New requests are bounded and refused when there are too many. All other
// messages are always accepted, because they are bounded by what was admitted (a replay or
// a cancel per request, lag + 1 results, one Ready or Lost at a time). Only the loop itself
// ever waits.
//
// One thread at a time does a round (takes all messages and acts on them): the thread that
// owns dispatch. That is the loop, or a thread that sends a message, asks for dispatch and
// finds that no other thread owns it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "common/types/request.h"

namespace flotilla::scheduler {

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
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  // `clock` outlives the inbox. Only this clock tells when a round is due, so no change of the
  // system's wall clock hastens one. absl's timed waits end by the wall clock: if that is set back
  // while the loop sleeps and no message comes, the round is as much later.
  EngineInbox(std::size_t max_submits, const Clock* clock)
      : max_submits_(max_submits), clock_(clock) {}

  // Any thread may call it. Only new requests get kFull. Unless it returns kYes, `message`
  // is untouched. If `batch` is not null and no thread owns dispatch, the caller owns it
  // now: `batch` gets all messages, and the caller must call EndDispatch. Otherwise `batch`
  // stays empty.
  Sent Send(EngineMessage&& message, std::vector<EngineMessage>* batch = nullptr) {
    const auto* submission = std::get_if<SubmitMessage>(&message);
    const bool submit = submission != nullptr && submission->request.attempt == Attempt(0);
    absl::MutexLock lock(&mu_);
    if (closed_) return Sent::kClosed;
    if (submit && submits_ >= max_submits_) return Sent::kFull;
    submits_ += submit;
    messages_.push_back(std::move(message));
    if (batch != nullptr && !taken_) *batch = Take();
    return Sent::kYes;
  }

  // Called by the loop. Sleeps until there is a message, the time given to EndDispatch
  // passes or the inbox is closed. Then the loop owns dispatch and gets all messages.
  std::vector<EngineMessage> AwaitDispatch() {
    absl::MutexLock lock(&mu_);
    do {
      sleeps_until_ns_ = wake_ns_;
      mu_.AwaitWithTimeout(absl::Condition(this, &EngineInbox::IsDue), Left());
      mu_.Await(absl::Condition(this, &EngineInbox::IsFree));
    } while (!closed_ && messages_.empty() && Left() > absl::ZeroDuration());
    return Take();
  }

  // Ends a round. The next round is due when there is a message, and at `wake_ns` of the clock at
  // the latest.
  void EndDispatch(std::int64_t wake_ns) {
    absl::MutexLock lock(&mu_);
    taken_ = false;
    wake_ns_ = wake_ns;
  }

  // Closes the inbox. Messages inside can still be taken; no more are accepted.
  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  bool closed() const {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  std::vector<EngineMessage> Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    taken_ = true;
    submits_ = 0;
    return std::exchange(messages_, {});
  }
  bool IsFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !taken_; }
  bool IsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !taken_ && (closed_ || !messages_.empty() || wake_ns_ < sleeps_until_ns_);
  }

  // The time until wake_ns_.
  absl::Duration Left() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (wake_ns_ == kNever) return absl::InfiniteDuration();
    return absl::Nanoseconds(std::max<std::int64_t>(0, wake_ns_ - clock_->NowNs()));
  }

  const std::size_t max_submits_;
  const Clock* const clock_;
  mutable absl::Mutex mu_;
  std::vector<EngineMessage> messages_ ABSL_GUARDED_BY(mu_);
  std::size_t submits_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool taken_ ABSL_GUARDED_BY(mu_) = false;  // a thread owns dispatch
  std::int64_t wake_ns_ ABSL_GUARDED_BY(mu_) = kNever;
  std::int64_t sleeps_until_ns_ ABSL_GUARDED_BY(mu_) = kNever;  // of the loop
};

}  // namespace flotilla::scheduler
