// InProcessEngine: the Engine whose scheduler is a thread of this process.
//
// One thread, the engine loop, owns the SchedulerCore. It sleeps until a
// message arrives (a request, a cancel, a result, the fate of the worker group)
// or a deadline is due; takes all messages at once; sends the plans that the
// core makes; then posts each sink the events of the round as one batch. Where the
// threads that bring messages have the time (InProcessEngineOptions::rounds_on_senders),
// one that finds the loop asleep does its round itself, and nobody is woken for it.
//
// When plans leave: lag + 1 of them are kept unanswered, so plan N + 1 is made
// when the result of N - lag is in, and the executor finds it queued when N
// ends. The scheduler is thus never in the critical path; a request that
// arrives waits for the plans already sent, at most lag steps more than if
// they left at the last safe moment.
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

// What one step did, as its result says.
struct StepRecord {
  Epoch epoch;
  Step step;
  std::uint32_t rows = 0;
  std::uint32_t decode_rows = 0;
  // Requests that got a token.
  std::vector<RequestId> tokens;
  // Total of sequences preempted for memory so far.
  std::uint64_t preemptions = 0;
};

// What became of a request, or of one attempt at it, for logs. The label lives as long as
// the call that shows it.
struct ServedRecord {
  RequestId id;
  Attempt attempt;
  std::string_view label;  // TokenizedRequest::label
  TraceContext trace;
  absl::Status status;
  Usage usage;
  std::optional<std::int64_t> first_token_ns;  // both since it was submitted
  std::int64_t elapsed_ns = 0;
};

struct InProcessEngineOptions {
  CoreOptions core;
  // One of PolicyNames().
  std::string policy = "priority";
  // Submitted and not yet seen by the loop; one more is refused.
  std::uint32_t max_inbox_requests = 1024;
  // A message is acted on by the thread that brings it when no other is acting: it saves a
  // switch of threads per step. Not where an executor that computes brings results on the
  // thread that computes. Executor and sinks are called with the locks of the callers of
  // Submit, Cancel, OnReady, OnResult and OnLost then: they must hold none that those take.
  bool rounds_on_senders = false;
  // The model's name for clients; empty: the executor's.
  std::string model_id;
  // The answers of TokenizerBytes and Describe.
  std::string tokenizer_bytes;
  std::uint64_t tokenizer_hash = 0;
  // Sees each step within its round, before the step's events are posted; must not
  // block. May be empty.
  std::function<void(const StepRecord&)> on_step;
  // Sees each preemption, within a round; must not block. May be empty.
  std::function<void(const Preemption&)> on_preemption;
  // Sees each request that has ended, within a round; must not block. May be empty.
  std::function<void(const ServedRecord&)> on_over;
  // Sees the scheduler when it has sent all the plans it can, within a round;
  // so it stays until the next call. Reads it only, must not block and keeps no
  // reference. For measurements; may be empty.
  std::function<void(const SchedulerCore&)> on_planned;
};

class InProcessEngine final : public Engine, private ExecutorListener {
 public:
  // `executor` and `clock` are not owned and outlive the engine.
  InProcessEngine(InProcessEngineOptions options, StepExecutor* executor, const Clock* clock);
  // Stops.
  ~InProcessEngine() override;

  // Starts the loop and the executor, once. An executor's error is returned;
  // then the engine is stopped.
  absl::Status Start();

  // Waits until the first worker group is up, or has turned out not to be
  // usable: then its error. For main, after Start; not after Stop.
  absl::Status WaitReady() const;

  // Ends every request with UNAVAILABLE, then stops executor and loop. No event
  // is posted after it returns. Idempotent; not from a sink.
  void Stop();

  // Engine. Submit posts a refusal on the calling thread, holding no lock, when
  // the inbox is full (RESOURCE_EXHAUSTED) or closed (UNAVAILABLE).
  absl::StatusOr<EngineDescription> Describe() const override;
  void Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) override;
  void Cancel(const CancelRequest& cancel) override;
  EngineLoad Load() const override;
  absl::StatusOr<std::string> TokenizerBytes() const override;
  void Drain(std::function<void()> done) override;

  // Any thread may call it.
  const SchedulerProbe& probe() const { return probe_; }

 private:
  // ExecutorListener, on the executor's threads.
  void OnReady(Epoch epoch, const ExecutorDescription& description) override;
  void OnResult(StepResult result) override;
  void OnLost(const Lost& lost) override;

  // Sends to the loop, or acts at once. As EngineInbox::Send.
  EngineInbox::Sent Send(EngineMessage&& message);
  void Loop();

  // Called only by the thread that owns dispatch.
  absl::Time Round(std::vector<EngineMessage> messages);  // when the next is due
  void Handle(SubmitMessage message);
  void Handle(const CancelRequest& cancel);
  void Handle(const StepResult& result);
  void Handle(const ReadyMessage& ready);
  void Handle(const Lost& lost);
  void Handle(DrainMessage message);
  // Sends plans until the core holds; when to plan again at the latest.
  absl::Time SendPlans();
  void EndEpoch(const absl::Status& why);
  void CollectEvents();
  void PostEvents();
  void FinishDrain();

  const InProcessEngineOptions options_;
  StepExecutor* const executor_;
  const Clock* const clock_;
  SchedulerProbe probe_;
  EngineInbox inbox_;
  std::thread thread_;

  // Used only by the thread that owns dispatch.
  SchedulerCore core_;
  Epoch epoch_;
  std::uint32_t refused_epochs_ = 0;  // ended by EndEpoch since a request was served
  struct Live {
    std::shared_ptr<EventSink> sink;
    std::string label;
    TraceContext trace;
    std::int64_t submitted_ns = 0;
    std::optional<std::int64_t> first_token_ns;  // since then
  };
  void NotifyEnd(const Live& live, const RequestEnd& end) const;
  absl::flat_hash_map<RequestId, Live> live_;
  std::vector<EngineEvent> events_;  // of this round
  std::vector<std::function<void()>> drained_;

  mutable absl::Mutex mu_;
  bool described_ ABSL_GUARDED_BY(mu_) = false;  // a group came, usable or not
  absl::StatusOr<EngineDescription> description_ ABSL_GUARDED_BY(mu_) =
      absl::UnavailableError("no worker group is ready yet");
};

}  // namespace flotilla
