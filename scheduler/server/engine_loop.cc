#include "scheduler/server/engine_loop.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "common/rt/sink_batches.h"
#include "scheduler/core/admission.h"
#include "scheduler/server/metrics.h"

namespace flotilla::scheduler {
namespace {

// How long a client is asked to wait when the inbox is full. This is far longer than the
// loop needs to take all messages.
constexpr std::int64_t kInboxRetryMs = 100;

void PostRefusal(const TokenizedRequest& request, EventSink& sink, absl::Status status,
                 std::int64_t retry_after_ms) {
  std::vector<EngineEvent> events;
  events.push_back(RequestEnd{.request = request.id,
                              .attempt = request.attempt,
                              .status = std::move(status),
                              .retry_after_ms = retry_after_ms,
                              .usage = {}});
  sink.Post(std::move(events));
}

}  // namespace

InProcessEngine::InProcessEngine(InProcessEngineOptions options, StepExecutor* executor,
                                 const Clock* clock)
    : options_(std::move(options)),
      executor_(executor),
      clock_(clock),
      metrics_(options_.metrics == nullptr
                   ? nullptr
                   : std::make_unique<SchedulerMetrics>(*options_.metrics, &probe_, clock)),
      inbox_(options_.max_inbox_requests, clock),
      core_(options_.core, MakePolicy(options_.policy)) {}

InProcessEngine::~InProcessEngine() { Stop(); }

absl::Status InProcessEngine::Start() {
  thread_ = std::thread([this] { Loop(); });
  absl::Status started = executor_->Start(this);
  if (!started.ok()) Stop();
  return started;
}

absl::Status InProcessEngine::WaitReady() const {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&described_));
  return description_.status();
}

void InProcessEngine::Stop() {
  inbox_.Close();
  if (thread_.joinable()) thread_.join();
  executor_->Stop();
}

absl::StatusOr<EngineDescription> InProcessEngine::Describe() const {
  absl::MutexLock lock(&mu_);
  return description_;
}

absl::StatusOr<std::string> InProcessEngine::TokenizerBytes() const {
  if (options_.tokenizer_bytes.empty()) {
    return absl::UnimplementedError("this engine was given no tokenizer");
  }
  return options_.tokenizer_bytes;
}

EngineLoad InProcessEngine::Load() const { return probe_.Read().core.load; }

void InProcessEngine::Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) {
  EngineMessage message = SubmitMessage{std::move(request), std::move(sink)};
  const EngineInbox::Sent sent = Send(std::move(message));
  if (sent == EngineInbox::Sent::kYes) return;
  const SubmitMessage& refused = std::get<SubmitMessage>(message);
  PostRefusal(refused.request, *refused.sink,
              sent == EngineInbox::Sent::kFull
                  ? absl::ResourceExhaustedError("too many requests at once")
                  : absl::UnavailableError("the engine has stopped"),
              kInboxRetryMs);
}

void InProcessEngine::Cancel(const CancelRequest& cancel) { Send(EngineMessage(cancel)); }

void InProcessEngine::Drain(std::function<void()> done) {
  EngineMessage message = DrainMessage{std::move(done)};
  if (inbox_.Send(std::move(message)) == EngineInbox::Sent::kYes) return;
  std::get<DrainMessage>(message).done();  // the engine has stopped, so no request is left
}

void InProcessEngine::OnReady(Epoch epoch, const ExecutorDescription& description) {
  Send(ReadyMessage{epoch, description});
}
void InProcessEngine::OnResult(StepResult result) { Send(std::move(result)); }
void InProcessEngine::OnLost(const flotilla::Lost& lost) { Send(EngineMessage(lost)); }

EngineInbox::Sent InProcessEngine::Send(EngineMessage&& message) {
  std::vector<EngineMessage> batch;
  const EngineInbox::Sent sent =
      inbox_.Send(std::move(message), options_.rounds_on_senders ? &batch : nullptr);
  if (!batch.empty()) inbox_.EndDispatch(Round(std::move(batch)));
  return sent;
}

std::int64_t InProcessEngine::Round(std::vector<EngineMessage> messages) {
  for (EngineMessage& message : messages) {
    std::visit([this](auto& m) { Handle(std::move(m)); }, message);
  }
  const std::int64_t wake_ns = SendPlans();
  for (const Preemption& preemption : core_.TakePreemptions()) {
    if (options_.on_preemption) options_.on_preemption(preemption);
  }
  if (options_.on_planned) options_.on_planned(core_);
  CollectEvents();
  probe_.OnState(clock_->NowNs(), core_.Snapshot());
  PostEvents();
  FinishDrain();
  return wake_ns;
}

void InProcessEngine::Loop() {
  std::vector<EngineMessage> messages = inbox_.AwaitDispatch();
  for (; !inbox_.closed(); messages = inbox_.AwaitDispatch()) {
    inbox_.EndDispatch(Round(std::move(messages)));
  }
  core_.Drain();
  for (EngineMessage& message : messages) {
    std::visit([this](auto& m) { Handle(std::move(m)); }, message);
  }
  core_.Abort(absl::UnavailableError("the engine has stopped"));
  CollectEvents();
  probe_.OnState(clock_->NowNs(), core_.Snapshot());
  PostEvents();
  FinishDrain();
  absl::MutexLock lock(&mu_);
  if (!described_) description_ = absl::UnavailableError("the engine has stopped");
  described_ = true;
}

void InProcessEngine::Handle(SubmitMessage message) {
  const RequestId id = message.request.id;
  if (live_.contains(id)) {
    PostRefusal(message.request, *message.sink,
                absl::AlreadyExistsError("a request of this id is being served"), 0);
    return;
  }
  const std::int64_t now_ns = clock_->NowNs();
  live_.emplace(id, Live{.sink = std::move(message.sink),
                         .label = message.request.label,
                         .trace = message.request.trace,
                         .submitted_ns = now_ns,
                         .first_token_ns = std::nullopt});
  core_.Submit(now_ns, std::move(message.request));
}

void InProcessEngine::Handle(const CancelRequest& cancel) { core_.Cancel(cancel); }

void InProcessEngine::Handle(const StepResult& result) {
  const absl::Status applied = core_.Apply(result);
  if (!applied.ok()) EndEpoch(result.step, applied);
  probe_.OnStepDone(clock_->NowNs(), result.timings);
  if (metrics_ != nullptr) metrics_->OnStep(result, block_tokens_);
}

void InProcessEngine::Handle(const ReadyMessage& ready) {
  absl::Status usable;
  if (epoch_ == Epoch{0}) usable = CheckQueueTokens(options_.core, ready.description);
  if (usable.ok()) usable = core_.Ready(ready.epoch, ready.description);
  if (!usable.ok()) {
    core_.Abort(usable);
    {
      absl::MutexLock lock(&mu_);
      if (!described_) description_ = usable;
      described_ = true;
    }
    if (epoch_ == Epoch{0} && options_.on_unusable) options_.on_unusable();
    return;
  }
  epoch_ = ready.epoch;
  block_tokens_ = std::max(1u, ready.description.groups[0].tokens_per_block);
  probe_.OnState(clock_->NowNs(), core_.Snapshot());
  absl::MutexLock lock(&mu_);
  described_ = true;
  description_ = EngineDescription{
      .model_id = options_.model_id.empty() ? ready.description.model_id : options_.model_id,
      .vocab_size = ready.description.vocab_size,
      .max_context = LongestServable(ready.description),
      .tokenizer_hash = options_.tokenizer_hash,
      .numerics_id = ready.description.numerics_id,
      .exactness = ready.description.exactness,
      .max_sequences = MaxSequences(options_.core, ready.description),
      .max_queue_tokens = MaxQueuedTokens(options_.core, ready.description)};
}

void InProcessEngine::Handle(const flotilla::Lost& lost) {
  probe_.OnGroupLost(lost.cause == flotilla::Lost::Cause::kStopped);
  if (options_.on_lost) options_.on_lost(lost);
  const bool refused = lost.cause == flotilla::Lost::Cause::kDigest ||
                       lost.cause == flotilla::Lost::Cause::kInvalidPlan;
  if (refused) {
    core_.PlanRefused(clock_->NowNs(), lost.epoch, lost.refused, lost.detail);
    return;
  }
  core_.Lost(lost.epoch,
             lost.blames_requests ? absl::MakeConstSpan(lost.started) : absl::Span<const Step>());
}

void InProcessEngine::Handle(DrainMessage message) {
  core_.Drain();
  drained_.push_back(std::move(message.done));
}

// Ends an epoch whose group gave a wrong result or refused a plan. No later result of this
// epoch is used. Its requests are computed again in the next epoch.
void InProcessEngine::EndEpoch(Step step, const absl::Status& why) {
  core_.PlanRefused(clock_->NowNs(), epoch_, step, why.message());
  executor_->EndEpoch(epoch_);
}

std::int64_t InProcessEngine::SendPlans() {
  while (true) {
    const std::int64_t now_ns = clock_->NowNs();
    PlanOutcome outcome = core_.Plan(now_ns);
    if (!outcome.plan.has_value()) return outcome.wake_ns.value_or(EngineInbox::kNever);
    probe_.OnPlanned(clock_->NowNs() - now_ns);
    const Step step = outcome.plan->step;
    const absl::Status sent = executor_->Execute(*std::move(outcome.plan));
    // FAILED_PRECONDITION: the epoch has ended, and its Lost is in the inbox or on its way.
    if (!sent.ok() && !absl::IsFailedPrecondition(sent)) EndEpoch(step, sent);
  }
}

void InProcessEngine::CollectEvents() {
  std::vector<EngineEvent> taken = core_.TakeEvents();
  events_.insert(events_.end(), std::make_move_iterator(taken.begin()),
                 std::make_move_iterator(taken.end()));
}

void InProcessEngine::PostEvents() {
  SinkBatches batches;
  for (EngineEvent& event : events_) {
    const auto live = live_.find(EventKey(event).first);
    const auto* end = std::get_if<RequestEnd>(&event);
    const bool last = end != nullptr;
    if (last && options_.on_over) NotifyEnd(live->second, *end);
    if (std::holds_alternative<TokenEvent>(event) && !live->second.first_token_ns.has_value()) {
      live->second.first_token_ns = clock_->NowNs() - live->second.submitted_ns;
    }
    batches.Add(live->second.sink, std::move(event));
    if (last) live_.erase(live);
  }
  events_.clear();
  batches.Post();
}

void InProcessEngine::NotifyEnd(const Live& live, const RequestEnd& end) const {
  options_.on_over({.id = end.request,
                    .attempt = end.attempt,
                    .label = live.label,
                    .trace = live.trace,
                    .status = end.status,
                    .usage = end.usage,
                    .first_token_ns = live.first_token_ns,
                    .elapsed_ns = clock_->NowNs() - live.submitted_ns});
}

void InProcessEngine::FinishDrain() {
  if (core_.live_requests() > 0) return;
  for (const std::function<void()>& done : std::exchange(drained_, {})) done();
}

}  // namespace flotilla::scheduler
