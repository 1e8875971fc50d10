#include "router/remote/remote_engine.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "flotilla/v1/scheduler.grpc.pb.h"
#include "proto/codec/engine.h"

namespace flotilla::router {
namespace {

constexpr std::int64_t kNotReadyRetryMs = 1000;

RequestEnd EndWith(const RequestId& id, Attempt attempt, absl::Status status) {
  return {.request = id,
          .attempt = attempt,
          .status = std::move(status),
          .retry_after_ms = kNotReadyRetryMs,
          .usage = {}};
}

}  // namespace

// The connection to the scheduler.
struct RemoteEngine::Link {
  void Send(const codec::EngineCommand& command, std::int64_t now_ns) {
    v1::EngineCommand message;
    codec::ToProto(command, now_ns, &message);
    client.Send(std::move(message));
  }

  rpc::ReconnectingClient<v1::Scheduler, v1::EngineCommand, v1::EngineUpdate> client;
};

RemoteEngine::RemoteEngine(rpc::PeerOptions scheduler, const Clock* clock,
                           RemoteEngineObserver* observer)
    : clock_(clock),
      observer_(observer),
      link_(new Link{{std::move(scheduler),
                      &v1::Scheduler::Stub::PrepareAsyncAttach,
                      "the scheduler",
                      {.on_message =
                           [this](const v1::EngineUpdate& message) {
                             absl::StatusOr<codec::EngineUpdate> update = codec::FromProto(message);
                             if (update.ok()) OnUpdate(*std::move(update));
                             return update.status();
                           },
                       .on_broken = [this](const absl::Status& why) { OnBroken(why); }}}}) {}
RemoteEngine::~RemoteEngine() { Stop(); }

void RemoteEngine::Start() { link_->client.Start(); }

void RemoteEngine::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  link_->client.Stop();
  SinkBatches batches;
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    attached_ = false;
    for (const auto& [id, entry] : std::exchange(requests_, {})) {
      if (entry.accepted) EndSequences(id, entry, FinishReason::kError, batches);
      batches.Add(entry.sink,
                  EndWith(id, entry.attempt, absl::UnavailableError("the router has stopped")));
    }
    drained = TakeDrained();
  }
  batches.Post();
  for (const auto& done : drained) done();
}

absl::StatusOr<EngineDescription> RemoteEngine::Describe() const {
  absl::MutexLock lock(&mu_);
  if (!description_.has_value()) return absl::UnavailableError("no scheduler has answered yet");
  return *description_;
}

EngineLoad RemoteEngine::Load() const {
  absl::MutexLock lock(&mu_);
  EngineLoad load = load_;
  load.ready = load.ready && attached_;
  load.draining = load.draining || draining_;
  return load;
}

absl::Status RemoteEngine::TrySubmit(TokenizedRequest request, std::shared_ptr<EventSink> sink) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return absl::UnavailableError("the router has stopped");
  if (draining_ && request.attempt == Attempt(0)) {
    return absl::UnavailableError("the router is draining");
  }
  if (!attached_) return absl::UnavailableError("the scheduler is not there");
  if (requests_.contains(request.id)) {
    return absl::AlreadyExistsError("a request of this id is being served");
  }
  Entry& entry = requests_[request.id];
  entry.attempt = request.attempt;
  entry.sink = std::move(sink);
  entry.ended.resize(request.sequences);
  link_->Send(codec::EngineCommand(std::move(request)), clock_->NowNs());
  return absl::OkStatus();
}

void RemoteEngine::Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) {
  const RequestId id = request.id;
  const Attempt attempt = request.attempt;
  absl::Status refused = TrySubmit(std::move(request), sink);
  if (refused.ok()) return;
  std::vector<EngineEvent> events;
  events.push_back(EndWith(id, attempt, std::move(refused)));
  sink->Post(std::move(events));
}

void RemoteEngine::Cancel(const CancelRequest& cancel) {
  absl::MutexLock lock(&mu_);
  if (attached_ && requests_.contains(cancel.request)) {
    link_->Send(codec::EngineCommand(cancel), clock_->NowNs());
  }
}

absl::StatusOr<std::string> RemoteEngine::TokenizerBytes() const {
  absl::StatusOr<v1::TokenizerContent> answer =
      link_->client.Call(&v1::Scheduler::Stub::GetTokenizer);
  if (!answer.ok()) return answer.status();
  return std::move(*answer->mutable_content());
}

void RemoteEngine::Drain(std::function<void()> done) {
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    drained_.push_back(std::move(done));
    drained = TakeDrained();
  }
  for (const auto& one : drained) one();
}

absl::Status RemoteEngine::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

void RemoteEngine::OnUpdate(codec::EngineUpdate update) {
  SinkBatches batches;
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    if (update.load.has_value()) load_ = *update.load;
    if (update.description.has_value()) {
      description_ = update.description;
      status_ = absl::OkStatus();
      attached_ = true;
    }
    for (EngineEvent& event : update.events) {
      const auto [id, attempt] = EventKey(event);
      const auto at = requests_.find(id);
      if (at == requests_.end() || at->second.attempt != attempt) continue;
      Entry& entry = at->second;
      entry.accepted |= std::holds_alternative<Accepted>(event);
      if (const auto* end = std::get_if<SequenceEnd>(&event)) {
        if (end->sequence.value() < entry.ended.size()) entry.ended[end->sequence.value()] = true;
      }
      const bool over = std::holds_alternative<RequestEnd>(event);
      batches.Add(entry.sink, std::move(event));
      if (over) requests_.erase(at);
    }
    drained = TakeDrained();
  }
  batches.Post();
  if (observer_ != nullptr) {
    if (update.load.has_value()) observer_->OnLoad(*update.load);
    if (update.description.has_value()) observer_->OnAttached(*update.description);
  }
  for (const auto& done : drained) done();
}

void RemoteEngine::OnBroken(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    attached_ = false;
    status_ = why;
    if (stopped_) return;  // Stop ends them
  }
  if (observer_ != nullptr) observer_->OnDetached(why);
  SinkBatches batches;
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;  // Stop ends them
    for (const auto& [id, entry] : std::exchange(requests_, {})) {
      if (entry.accepted) EndSequences(id, entry, FinishReason::kMoved, batches);
      batches.Add(entry.sink, EndWith(id, entry.attempt, why));
    }
    drained = TakeDrained();
  }
  batches.Post();  // the owners may submit these requests again
  for (const auto& done : drained) done();
}

void RemoteEngine::EndSequences(const RequestId& id, const Entry& entry, FinishReason reason,
                                SinkBatches& batches) {
  for (std::uint32_t i = 0; i < entry.ended.size(); ++i) {
    if (entry.ended[i]) continue;
    batches.Add(entry.sink, SequenceEnd{.request = id,
                                        .attempt = entry.attempt,
                                        .sequence = SequenceIndex(i),
                                        .reason = reason});
  }
}

std::vector<std::function<void()>> RemoteEngine::TakeDrained() {
  if (!draining_ || !requests_.empty()) return {};
  return std::exchange(drained_, {});
}

}  // namespace flotilla::router
