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

void Refuse(const TokenizedRequest& request, EventSink& sink, absl::Status status) {
  std::vector<EngineEvent> events;
  events.push_back(EndWith(request.id, request.attempt, std::move(status)));
  sink.Post(std::move(events));
}

bool HasTokens(const TokenizedRequest& request) {
  for (const std::vector<TokenId>& prefix : request.output_prefix) {
    if (!prefix.empty()) return true;
  }
  return false;
}

}  // namespace

// One stream, from the dial to its end.
class RemoteEngine::Link final
    : private rpc::ClientStream<v1::EngineCommand, v1::EngineNews>::Handler {
 public:
  explicit Link(RemoteEngine* engine)
      : engine_(engine),
        stub_(v1::Scheduler::NewStub(
            rpc::Dial(engine->options_.address, engine->options_.credentials.get()))),
        stream_(this) {}

  // Messages come from here on.
  void Begin() {
    stub_->async()->Attach(&stream_.context(), stream_.reactor());
    stream_.Begin();
  }

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
  void OnMessage(const v1::EngineNews& message) override {
    if (!refused_.ok()) return;
    absl::StatusOr<EngineNews> news = FromProto(message);
    if (news.ok()) {
      engine_->OnNews(*std::move(news));
    } else {
      refused_ = news.status();
      Cancel();
    }
  }

  RemoteEngine* const engine_;
  const std::unique_ptr<v1::Scheduler::Stub> stub_;
  absl::Status refused_;  // of the stream's callbacks, then of Wait
  rpc::ClientStream<v1::EngineCommand, v1::EngineNews> stream_;
};

RemoteEngine::RemoteEngine(RemoteEngineOptions options, const Clock* clock)
    : options_(std::move(options)), clock_(clock) {}
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
      if (entry.accepted) EndBranches(id, entry, FinishReason::kError, batches);
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

void RemoteEngine::Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    const bool again = request.attempt > Attempt(0);
    if (stopped_) {
      refused = absl::UnavailableError("the router has stopped");
    } else if (draining_ && !again) {
      refused = absl::UnavailableError("the router is draining");
    } else if (!attached_ && !again) {
      refused = absl::UnavailableError("the scheduler is not there");
    } else if (requests_.contains(request.id)) {
      refused = absl::AlreadyExistsError("a request of this id is being served");
    } else {
      Entry& entry = requests_[request.id];
      entry.attempt = request.attempt;
      entry.sink = std::move(sink);
      entry.ended.resize(request.branches);
      if (attached_) {
        link_->Send(EngineCommand(std::move(request)), clock_->NowNs());
      } else {
        entry.until = absl::Now() + options_.hold;
        entry.numerics_id = description_.has_value() ? description_->numerics_id : 0;
        entry.held = std::move(request);
      }
      return;
    }
  }
  Refuse(request, *sink, refused);
}

bool RemoteEngine::CancelledWhole(const Entry& entry) {
  std::vector<bool> cancelled(entry.ended.size());
  for (const CancelRequest& cancel : entry.cancels) {
    if (!cancel.branch.has_value()) return true;
    if (cancel.branch->value() < cancelled.size()) cancelled[cancel.branch->value()] = true;
  }
  return std::find(cancelled.begin(), cancelled.end(), false) == cancelled.end();
}

std::uint32_t RemoteEngine::KeptTokens(const Entry& entry, BranchIndex branch) {
  for (const CancelRequest& cancel : entry.cancels) {
    if (cancel.branch.value_or(branch) == branch) return cancel.keep_tokens;
  }
  return 0;
}

void RemoteEngine::Cancel(const CancelRequest& cancel) {
  SinkBatches batches;
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    const auto at = requests_.find(cancel.request);
    if (at == requests_.end()) return;
    Entry& entry = at->second;
    if (!entry.held.has_value()) {
      if (attached_) link_->Send(EngineCommand(cancel), clock_->NowNs());
      return;
    }
    entry.cancels.push_back(cancel);
    if (!CancelledWhole(entry)) return;
    // It is nowhere else: it ends here.
    batches.Add(entry.sink, Accepted{cancel.request, entry.attempt});
    for (std::uint32_t i = 0; i < entry.ended.size(); ++i) {
      batches.Add(entry.sink, BranchEnd{.request = cancel.request,
                                        .attempt = entry.attempt,
                                        .branch = BranchIndex(i),
                                        .reason = FinishReason::kCancelled,
                                        .output_tokens = KeptTokens(entry, BranchIndex(i))});
    }
    batches.Add(entry.sink, RequestEnd{.request = cancel.request, .attempt = entry.attempt});
    requests_.erase(at);
    drained = TakeDrained();
  }
  batches.Post();
  for (const auto& done : drained) done();
}

absl::StatusOr<std::string> RemoteEngine::TokenizerBytes() const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTokenizerTimeout));
  v1::TokenizerContent content;
  const grpc::Status status =
      v1::Scheduler::NewStub(rpc::Dial(options_.address, options_.credentials.get()))
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
    ExpireHeld();
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stopped_), rpc::RetryDelay(why, options_.retry)))
      return;
  }
}

void RemoteEngine::OnNews(EngineNews news) {
  SinkBatches batches;
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    if (news.load.has_value()) load_ = *news.load;
    if (news.description.has_value()) {
      description_ = *std::move(news.description);
      status_ = absl::OkStatus();
      if (!std::exchange(attached_, true)) SendHeld(batches);
    }
    for (EngineEvent& event : news.events) {
      const auto [id, attempt] = EventKey(event);
      const auto at = requests_.find(id);
      if (at == requests_.end() || at->second.attempt != attempt) continue;
      Entry& entry = at->second;
      entry.accepted |= std::holds_alternative<Accepted>(event);
      if (const auto* end = std::get_if<BranchEnd>(&event)) {
        if (end->branch.value() < entry.ended.size()) entry.ended[end->branch.value()] = true;
      }
      const bool over = std::holds_alternative<RequestEnd>(event);
      batches.Add(entry.sink, std::move(event));
      if (over) requests_.erase(at);
    }
    drained = TakeDrained();
  }
  batches.Post();
  for (const auto& done : drained) done();
}

void RemoteEngine::OnBroken(const absl::Status& why) {
  SinkBatches batches;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;  // Stop ends them
    for (auto at = requests_.begin(); at != requests_.end();) {
      const auto& [id, entry] = *at;
      if (entry.held.has_value()) {
        ++at;
        continue;
      }
      // What no engine has accepted yet is refused; what a client waits for comes again.
      if (entry.accepted || entry.attempt > Attempt(0)) {
        if (!entry.accepted) batches.Add(entry.sink, Accepted{id, entry.attempt});
        EndBranches(id, entry, FinishReason::kMoved, batches);
      }
      batches.Add(entry.sink, EndWith(id, entry.attempt, why));
      at = requests_.erase(at);
    }
  }
  batches.Post();  // and they come again, to be held
}

void RemoteEngine::EndBranches(const RequestId& id, const Entry& entry, FinishReason reason,
                               SinkBatches& batches) {
  for (std::uint32_t i = 0; i < entry.ended.size(); ++i) {
    if (entry.ended[i]) continue;
    batches.Add(
        entry.sink,
        BranchEnd{
            .request = id, .attempt = entry.attempt, .branch = BranchIndex(i), .reason = reason});
  }
}

void RemoteEngine::SendHeld(SinkBatches& batches) {
  for (auto at = requests_.begin(); at != requests_.end();) {
    Entry& entry = at->second;
    if (!entry.held.has_value()) {
      ++at;
      continue;
    }
    if (entry.numerics_id != description_->numerics_id && HasTokens(*entry.held)) {
      batches.Add(entry.sink,
                  EndWith(at->first, entry.attempt,
                          absl::UnavailableError(
                              "the scheduler came back with another model or build, so the "
                              "answer cannot go on as it began")));
      at = requests_.erase(at);
      continue;
    }
    link_->Send(EngineCommand(*std::exchange(entry.held, std::nullopt)), clock_->NowNs());
    for (const CancelRequest& cancel : std::exchange(entry.cancels, {})) {
      link_->Send(EngineCommand(cancel), clock_->NowNs());
    }
    ++at;
  }
}

void RemoteEngine::ExpireHeld() {
  SinkBatches batches;
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = absl::Now();
    for (auto at = requests_.begin(); at != requests_.end();) {
      const Entry& entry = at->second;
      if (!entry.held.has_value() || entry.until > now) {
        ++at;
        continue;
      }
      batches.Add(entry.sink, EndWith(at->first, entry.attempt,
                                      absl::UnavailableError("the scheduler did not come back")));
      at = requests_.erase(at);
    }
    drained = TakeDrained();
  }
  batches.Post();
  for (const auto& done : drained) done();
}

std::vector<std::function<void()>> RemoteEngine::TakeDrained() {
  if (!draining_ || !requests_.empty()) return {};
  return std::exchange(drained_, {});
}

}  // namespace flotilla
