#include "scheduler/remote/engine_server.h"

#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/rt/task_thread.h"
#include "flotilla/v1/scheduler.grpc.pb.h"
#include "proto/codec/engine.h"
#include "proto/codec/status.h"
#include "rpc/server.h"
#include "rpc/stream.h"

namespace flotilla::scheduler {
namespace {

// The requests that routers have in the engine, by id. When a router comes back, requests
// of its last stream may still be ending. Any thread may use it.
class RequestRegistry {
 public:
  // Registers a request. False: a request with this id is in the engine; `submit` runs when
  // that one has ended.
  bool Begin(const RequestId& id, std::function<void()> submit) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto [at, added] = waiting_.try_emplace(id);
    if (!added) at->second.push_back(std::move(submit));
    return added;
  }
  // Records that the request with this id has ended. Returns the next one to be submitted
  // under that id, or null.
  std::function<void()> End(const RequestId& id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto at = waiting_.find(id);
    if (at == waiting_.end()) return nullptr;
    if (at->second.empty()) {
      waiting_.erase(at);
      return nullptr;
    }
    std::function<void()> next = std::move(at->second.front());
    at->second.erase(at->second.begin());
    return next;
  }

 private:
  absl::Mutex mu_;
  // For each id in the engine, the submissions that wait for its end.
  absl::flat_hash_map<RequestId, std::vector<std::function<void()>>> waiting_ ABSL_GUARDED_BY(mu_);
};

using UpdateStream = rpc::ServerStream<v1::EngineCommand, v1::EngineUpdate>;

// One router's stream and the sink of its requests. It outlives the stream until the last
// of the requests has ended.
class RouterLink final : public EventSink, public std::enable_shared_from_this<RouterLink> {
 public:
  RouterLink(Engine* engine, RequestRegistry* registry, TaskThread* thread, UpdateStream* stream)
      : engine_(engine), registry_(registry), thread_(thread), stream_(stream) {}

  void Submit(TokenizedRequest request) ABSL_LOCKS_EXCLUDED(mu_) {
    const RequestId id = request.id;
    {
      absl::MutexLock lock(&mu_);
      if (stream_ == nullptr) return;
      requests_.insert(id);
    }
    auto submit = [self = shared_from_this(), request = std::move(request)]() mutable {
      self->SubmitNow(std::move(request));
    };
    auto shared = std::make_shared<decltype(submit)>(std::move(submit));
    if (registry_->Begin(id, [shared] { (*shared)(); })) (*shared)();
  }

  // Refuses a request that could not be parsed.
  void Refuse(const RequestId& id, Attempt attempt, absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    codec::EngineUpdate update;
    update.events.push_back(
        RequestEnd{.request = id, .attempt = attempt, .status = std::move(status)});
    absl::MutexLock lock(&mu_);
    Send(update);
  }

  void Cancel(const CancelRequest& cancel) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (!requests_.contains(cancel.request)) return;  // not this router's
    }
    engine_->Cancel(cancel);
  }

  // Called when the stream has ended. Cancels its requests.
  void Leave() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::flat_hash_set<RequestId> left;
    {
      absl::MutexLock lock(&mu_);
      stream_ = nullptr;
      left = requests_;
    }
    for (const RequestId& id : left) {
      engine_->Cancel({.request = id, .sequence = std::nullopt, .keep_tokens = 0});
    }
  }

  void Post(std::vector<EngineEvent> events) override ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<RequestId> ended;
    for (const EngineEvent& event : events) {
      if (std::holds_alternative<RequestEnd>(event)) ended.push_back(EventKey(event).first);
    }
    {
      absl::MutexLock lock(&mu_);
      for (const RequestId& id : ended) requests_.erase(id);
      Send({.events = std::move(events), .load = {}, .description = {}});
    }
    // The following work calls the engine, so it must not run inside a call of the engine.
    for (const RequestId& id : ended) {
      if (auto next = registry_->End(id)) thread_->Post(std::move(next));
    }
    if (!ended.empty()) thread_->Post([self = shared_from_this()] { self->SendUpdate(); });
  }

  // Sends what has changed, if anything has. Called only on thread_.
  void SendUpdate() ABSL_LOCKS_EXCLUDED(mu_) {
    // Nothing is sent before the description, since a router is ready only with it.
    absl::StatusOr<EngineDescription> description = engine_->Describe();
    if (!description.ok()) return;
    const EngineLoad load = engine_->Load();
    codec::EngineUpdate update;
    if (description->numerics_id != sent_numerics_id_) update.description = *std::move(description);
    if (update.description.has_value() || load != sent_load_) update.load = load;
    if (!update.load.has_value()) return;
    sent_load_ = load;
    if (update.description.has_value()) sent_numerics_id_ = update.description->numerics_id;
    absl::MutexLock lock(&mu_);
    Send(update);
  }

 private:
  void SubmitNow(TokenizedRequest request) ABSL_LOCKS_EXCLUDED(mu_) {
    const RequestId id = request.id;
    if (gone()) {
      if (auto next = registry_->End(id)) thread_->Post(std::move(next));
      return;
    }
    engine_->Submit(std::move(request), shared_from_this());
    // Leave may have been called before the request was in the engine.
    if (gone()) engine_->Cancel({.request = id, .sequence = std::nullopt, .keep_tokens = 0});
  }

  bool gone() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return stream_ == nullptr;
  }

  void Send(const codec::EngineUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (stream_ == nullptr) return;
    v1::EngineUpdate message;
    codec::ToProto(update, &message);
    stream_->Send(std::move(message));
  }

  Engine* const engine_;
  RequestRegistry* const registry_;
  TaskThread* const thread_;
  absl::Mutex mu_;
  UpdateStream* stream_ ABSL_GUARDED_BY(mu_);  // null: the stream has ended
  absl::flat_hash_set<RequestId> requests_ ABSL_GUARDED_BY(mu_);
  // Only the thread uses these.
  std::uint64_t sent_numerics_id_ = 0;  // 0: nothing was sent
  EngineLoad sent_load_;
};

class EngineServerImpl;

// One Attach call.
class RouterStream final : public UpdateStream {
 public:
  RouterStream(std::unique_ptr<Call> call, EngineServerImpl* server);

 private:
  bool OnMessage(const v1::EngineCommand& message) override;
  void OnGone() override;

  EngineServerImpl* const server_;
  std::shared_ptr<RouterLink> link_;
};

class EngineServerImpl final : public EngineServer {
 public:
  EngineServerImpl(const EngineServerOptions& options, Engine* engine, const Clock* clock)
      : options_(options), engine_(engine), clock_(clock), server_(options.listen.poller) {}
  ~EngineServerImpl() override { Stop(); }

  absl::Status Begin() {
    if (absl::Status status = server_.Listen(options_.listen, {&service_}); !status.ok()) {
      return status;
    }
    server_.OnStream(&service_, &v1::Scheduler::AsyncService::RequestAttach,
                     [this](auto call) { new RouterStream(std::move(call), this); });
    server_.OnCall(&service_, &v1::Scheduler::AsyncService::RequestGetTokenizer,
                   [this](auto* call) { call->Finish(GetTokenizer(call->response)); });
    return absl::OkStatus();
  }

  std::uint16_t port() const override { return server_.port(); }

  void Stop() override {
    if (std::exchange(stopped_, true)) return;
    server_.Stop(absl::ZeroDuration());
    absl::Notification idle;  // all work that was posted before has run
    thread_.Post([&idle] { idle.Notify(); });
    idle.WaitForNotification();
  }

  std::shared_ptr<RouterLink> Add(UpdateStream* stream) {
    auto link = std::make_shared<RouterLink>(engine_, &registry_, &thread_, stream);
    thread_.Post([this, link] {
      links_.insert(link);
      link->SendUpdate();
      if (!ticking_) Tick();
    });
    return link;
  }
  void Remove(const std::shared_ptr<RouterLink>& link) {
    link->Leave();
    thread_.Post([this, link] { links_.erase(link); });
  }

  const Clock& clock() const { return *clock_; }

 private:
  grpc::Status GetTokenizer(v1::TokenizerContent& content) {
    const absl::StatusOr<EngineDescription> description = engine_->Describe();
    absl::StatusOr<std::string> bytes = engine_->TokenizerBytes();
    if (!description.ok() || !bytes.ok()) {
      return codec::ToGrpcStatus(description.ok() ? bytes.status() : description.status(), {});
    }
    content.set_hash(description->tokenizer_hash);
    content.set_content(*std::move(bytes));
    return grpc::Status::OK;
  }

  // Runs on thread_, which sleeps while there is no router.
  void Tick() {
    ticking_ = !links_.empty();
    if (!ticking_) return;
    for (const auto& link : links_) link->SendUpdate();
    thread_.After(options_.load_interval, [this] { Tick(); });
  }

  const EngineServerOptions options_;
  Engine* const engine_;
  const Clock* const clock_;
  RequestRegistry registry_;
  // Only the thread uses these.
  absl::flat_hash_set<std::shared_ptr<RouterLink>> links_;
  bool ticking_ = false;
  TaskThread thread_;
  v1::Scheduler::AsyncService service_;
  rpc::Server server_;
  bool stopped_ = false;
};

RouterStream::RouterStream(std::unique_ptr<Call> call, EngineServerImpl* server)
    : ServerStream(std::move(call)), server_(server), link_(server->Add(this)) {
  Begin();
}

bool RouterStream::OnMessage(const v1::EngineCommand& message) {
  absl::StatusOr<codec::EngineCommand> command =
      codec::FromProto(message, server_->clock().NowNs());
  if (!command.ok() && message.has_submit()) {  // other requests are not affected
    const v1::RequestId& id = message.submit().id();
    link_->Refuse({id.incarnation(), id.counter()}, Attempt(message.submit().attempt()),
                  command.status());
    return true;
  }
  if (!command.ok()) {
    Close(codec::ToGrpcStatus(command.status(), {}));
    return false;
  }
  if (auto* request = std::get_if<TokenizedRequest>(&*command)) {
    link_->Submit(std::move(*request));
  } else {
    link_->Cancel(std::get<CancelRequest>(*command));
  }
  return true;
}

void RouterStream::OnGone() { server_->Remove(link_); }

}  // namespace

absl::StatusOr<std::unique_ptr<EngineServer>> EngineServer::Start(
    const EngineServerOptions& options, Engine* engine, const Clock* clock) {
  auto server = std::make_unique<EngineServerImpl>(options, engine, clock);
  if (absl::Status status = server->Begin(); !status.ok()) return status;
  return server;
}

}  // namespace flotilla::scheduler
