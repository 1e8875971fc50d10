// InProcessEngine: the Engine whose scheduler is a thread of this process.
//
// One thread, the engine loop, owns the SchedulerCore. It sleeps until a message arrives (a
// request, a cancel, a result, the start or loss of the worker group) or a deadline is due.
// Then it takes all messages at once, sends the plans that the core makes, and posts to
// each sink the events of the round as one batch. With
// InProcessEngineOptions::rounds_on_senders, a thread that sends a message while the loop
// sleeps does the round itself, so that no thread has to be woken.
//
// The engine keeps lag + 1 plans unanswered. So plan N + 1 is made when the result of
// N - lag is in, and the executor finds it in its queue when N ends. The scheduler is thus
// never in the critical path. A request that arrives waits for the plans already sent. If each
// plan were sent at the last safe moment, the request would wait at most lag steps less.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "common/types/executor.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/server/inbox.h"
#include "scheduler/server/probe.h"

namespace flotilla {
class Metrics;
}

namespace flotilla::scheduler {

class SchedulerMetrics;

// How a request, or one attempt at it, ended, for logs. The label is valid during the call
// of on_over only.
struct ServedRecord {
  RequestId id;
  Attempt attempt;
  std::string_view label;  // TokenizedRequest::label
  TraceContext trace;
  absl::Status status;
  Usage usage;
  // Both times count from the submission.
  std::optional<std::int64_t> first_token_ns;
  std::int64_t elapsed_ns = 0;
};

struct InProcessEngineOptions {
  CoreOptions core;
  // One of PolicyNames().
  std::string policy = "priority";
  // The most requests that are submitted and not yet taken by the loop; one more is
  // refused.
  std::uint32_t max_inbox_requests = 1024;
  // The thread that sends a message also does its round, unless another thread is doing
  // one. This saves a switch of threads per step. It must be off if the executor computes
  // on the thread that calls OnResult. When it is on, callers of Submit, Cancel, OnReady,
  // OnResult and OnLost must hold no lock that the executor or a sink takes, because the
  // engine may call these from inside.
  bool rounds_on_senders = false;
  // The model's name for clients; empty: the executor's name for it.
  std::string model_id;
  // The answers of TokenizerBytes and Describe.
  std::string tokenizer_bytes;
  std::uint64_t tokenizer_hash = 0;
  // Gets the engine's metrics, and renders none of them after the engine is gone. Null: nothing
  // is counted.
  Metrics* metrics = nullptr;
  // Called for each preemption, within a round. It must not block. May be empty.
  std::function<void(const Preemption&)> on_preemption;
  // Called for each request that has ended, within a round. It must not block. May be
  // empty.
  std::function<void(const ServedRecord&)> on_over;
  // Called for each loss of the worker group, within a round. It must not block. May be empty.
  std::function<void(const flotilla::Lost&)> on_lost;
  // Called within a round when the first worker group has turned out not to be usable; Describe
  // then returns why. It must not block. May be empty.
  std::function<void()> on_unusable;
  // Called within a round when the scheduler has sent all the plans that it can. The
  // scheduler keeps that state until the next round. The function only reads the
  // scheduler, must not block and keeps no reference. For measurements; may be empty.
  std::function<void(const SchedulerCore&)> on_planned;
};

class InProcessEngine final : public Engine, private ExecutorListener {
 public:
  // `executor` and `clock` are not owned and outlive the engine.
  InProcessEngine(InProcessEngineOptions options, StepExecutor* executor, const Clock* clock);
  // Stops.
  ~InProcessEngine() override;

  // Starts the loop and the executor. It is called once. If the executor fails to start,
  // the engine is stopped and the executor's error is returned.
  absl::Status Start();

  // Waits until a worker group is up, or until a group has turned out not to be usable. In the
  // second case it returns that group's error. main calls it after Start, and not after Stop.
  absl::Status WaitReady() const;

  // Ends every request with UNAVAILABLE, then stops loop and executor. No event is posted
  // after it returns. Idempotent. A sink must not call it.
  void Stop();

  // The methods of Engine. When the inbox is full (RESOURCE_EXHAUSTED) or closed
  // (UNAVAILABLE), Submit posts a refusal on the calling thread and holds no lock.
  absl::StatusOr<EngineDescription> Describe() const override;
  void Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) override;
  void Cancel(const CancelRequest& cancel) override;
  EngineLoad Load() const override;
  absl::StatusOr<std::string> TokenizerBytes() const override;
  void Drain(std::function<void()> done) override;

  // Any thread may call it.
  const SchedulerProbe& probe() const { return probe_; }

 private:
  // The methods of ExecutorListener, called on the executor's threads.
  void OnReady(Epoch epoch, const ExecutorDescription& description) override;
  void OnResult(StepResult result) override;
  void OnLost(const Lost& lost) override;

  // Sends a message to the loop, or does its round at once. Returns what EngineInbox::Send
  // returns.
  EngineInbox::Sent Send(EngineMessage&& message);
  void Loop();

  // Called only by the thread that owns dispatch.
  std::int64_t Round(std::vector<EngineMessage> messages);  // returns when the next round is due
  void Handle(SubmitMessage message);
  void Handle(const CancelRequest& cancel);
  void Handle(const StepResult& result);
  void Handle(const ReadyMessage& ready);
  void Handle(const Lost& lost);
  void Handle(DrainMessage message);
  // Sends plans until the core makes none. Returns the latest time to plan again.
  std::int64_t SendPlans();
  void EndEpoch(Step step, const absl::Status& why);
  void CollectEvents();
  void PostEvents();
  void FinishDrain();

  const InProcessEngineOptions options_;
  StepExecutor* const executor_;
  const Clock* const clock_;
  SchedulerProbe probe_;
  const std::unique_ptr<SchedulerMetrics> metrics_;  // may be null
  EngineInbox inbox_;
  std::thread thread_;

  // Used only by the thread that owns dispatch.
  SchedulerCore core_;
  Epoch epoch_;
  std::uint32_t block_tokens_ = 1;  // of the last usable worker group
  struct Live {
    std::shared_ptr<EventSink> sink;
    std::string label;
    TraceContext trace;
    std::int64_t submitted_ns = 0;
    std::optional<std::int64_t> first_token_ns;  // since submitted_ns
  };
  void NotifyEnd(const Live& live, const RequestEnd& end) const;
  absl::flat_hash_map<RequestId, Live> live_;
  std::vector<EngineEvent> events_;  // of this round
  std::vector<std::function<void()>> drained_;

  mutable absl::Mutex mu_;
  bool described_ ABSL_GUARDED_BY(mu_) = false;  // a group came (usable or not), or all stopped
  absl::StatusOr<EngineDescription> description_ ABSL_GUARDED_BY(mu_) =
      absl::UnavailableError("no worker group is ready yet");
};

}  // namespace flotilla::scheduler
