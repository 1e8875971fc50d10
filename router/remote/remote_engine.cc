#include "router/remote/remote_engine.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "flotilla/v1/scheduler.grpc.pb.h"
#include "proto/codec/engine.h"
#include "proto/codec/status.h"
#include "rpc/endpoint.h"
#include "rpc/stream.h"

namespace flotilla {
namespace {

constexpr std::int64_t kRetryAfterMs = 1000;
constexpr absl::Duration kTokenizerTimeout = absl::Seconds(10);

RequestEnd EndWith(const RequestId& id, Attempt attempt, absl::Status status) {
  return {.request = id,
          .attempt = attempt,
          .status = std::move(status),
          .retry_after_ms = kRetryAfterMs,
          .usage = {}};
}

}  // namespace

// One stream, from the connection to its end.
class RemoteEngine::Link final
    : private rpc::ClientStream<v1::EngineCommand, v1::EngineUpdate>::Handler {
 public:
  explicit Link(RemoteEngine* engine)
      : engine_(engine),
        stub_(v1::Scheduler::NewStub(
            rpc::ConnectTo(engine->options_.address, engine->options_.credentials.get()))),
        stream_(engine->options_.poller, this) {}

  // Begins the stream. Messages may come from here on.
  void Begin() { stream_.Begin(stub_->PrepareAsyncAttach(&stream_.context(), stream_.queue())); }

  void Send(const EngineCommand& command, std::int64_t now_ns) {
    v1::EngineCommand message;
    ToProto(command, now_ns, &message);
    stream_.Send(std::move(message));
  }
  void Cancel() { stream_.Cancel(); }
  absl::Status Wait() {
    const grpc::Status status = stream_.Wait();
    if (!refused_.ok()) return refused_;
    return status.ok() ? absl::UnavailableError("the scheduler ended the stream")
                       : ToAbslStatus(status);
  }

 private:
  void OnMessage(const v1::EngineUpdate& message) override {
    if (!refused_.ok()) return;
    absl::StatusOr<EngineUpdate> update = FromProto(message);
    if (update.ok()) {
      engine_->OnUpdate(*std::move(update));
    } else {
      refused_ = update.status();
      Cancel();
    }
  }

  RemoteEngine* const engine_;
  const std::unique_ptr<v1::Scheduler::Stub> stub_;
  absl::Status refused_;  // of the stream's callbacks, then of Wait
  rpc::ClientStream<v1::EngineCommand, v1::EngineUpdate> stream_;
};

RemoteEngine::RemoteEngine(RemoteEngineOptions options, const Clock* clock,
                           RemoteEngineObserver* observer)
    : options_(std::move(options)), clock_(clock), observer_(observer) {}
RemoteEngine::~RemoteEngine() { Stop(); }

void RemoteEngine::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void RemoteEngine::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    if (link_ != nullptr) link_->Cancel();
  }
  if (thread_.joinable()) thread_.join();
  SinkBatches batches;
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
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
  link_->Send(EngineCommand(std::move(request)), clock_->NowNs());
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
    link_->Send(EngineCommand(cancel), clock_->NowNs());
  }
}

absl::StatusOr<std::string> RemoteEngine::TokenizerBytes() const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTokenizerTimeout));
  v1::TokenizerContent content;
  const grpc::Status status =
      v1::Scheduler::NewStub(rpc::ConnectTo(options_.address, options_.credentials.get()))
          ->GetTokenizer(&context, {}, &content);
  if (!status.ok()) return ToAbslStatus(status);
  return std::move(*content.mutable_content());
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

void RemoteEngine::Loop() {
  while (true) {
    Link link(this);
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return;
      link_ = &link;
    }
    link.Begin();
    const absl::Status why = link.Wait();
    {
      absl::MutexLock lock(&mu_);
      link_ = nullptr;
      attached_ = false;
      status_ = why;
    }
    OnBroken(why);
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stopped_), rpc::RetryDelay(why, options_.retry)))
      return;
  }
}

void RemoteEngine::OnUpdate(EngineUpdate update) {
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

}  // namespace flotilla
