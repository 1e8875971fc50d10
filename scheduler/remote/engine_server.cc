#include "scheduler/remote/engine_server.h"

#include <algorithm>
#include <deque>
#include <optional>
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

class RouterLink;

// A request that a router has submitted and that is not in the engine yet.
struct Submission {
  std::shared_ptr<RouterLink> link;
  TokenizedRequest request;
  // [sequences] The output tokens that count of a sequence that the router has cancelled meanwhile.
  std::vector<std::optional<std::uint32_t>> cancelled;
  std::uint64_t ticket = 0;  // from RequestRegistry::Take

  // Records a cancel; the first one of a sequence counts. Returns whether none is left to compute.
  bool Cancel(const CancelRequest& cancel) {
    for (std::size_t i = 0; i < cancelled.size(); ++i) {
      if (cancel.sequence.has_value() && cancel.sequence->value() != i) continue;
      if (!cancelled[i].has_value()) cancelled[i] = cancel.keep_tokens;
    }
    return std::all_of(cancelled.begin(), cancelled.end(), [](const auto& c) { return c; });
  }
};

// The requests that routers have in the engine, by id. When a router comes back, requests
// of its last stream may still be ending. Any thread may use it.
class RequestRegistry {
 public:
  // The most submissions that wait for the end of one request: one more is refused.
  static constexpr std::size_t kMostWaiting = 8;
  enum class Place { kNow, kWaits, kRefused };
  enum class Cancelled { kElsewhere, kNoted, kEnds };

  // Registers a request. kNow: the caller calls Take. kWaits: a request with this id is in the
  // engine, and the one that gets true from End calls Take. kRefused: too many wait already;
  // `submission` is untouched.
  Place Begin(Submission& submission) ABSL_LOCKS_EXCLUDED(mu_);
  // Records that the request with this id has ended. Returns whether Take must be called for it.
  bool End(const RequestId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the next submission of this id, whose link submits it to the engine and then calls
  // TakeCancels. Returns none, and forgets the id, if none waits.
  std::optional<Submission> Take(const RequestId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the cancels that came while the submission with this ticket was being submitted.
  // Returns none once there are no more; from then on cancels go to the engine.
  std::vector<CancelRequest> TakeCancels(const RequestId& id, std::uint64_t ticket)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the link's request of this id if it is not in the engine yet. kElsewhere: it is in the
  // engine, or there is none. kEnds: nothing of it is left to compute, and it is now `ended`.
  Cancelled Cancel(const RouterLink* link, const CancelRequest& cancel, Submission* ended)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the link's request of this id is in the engine.
  bool Owns(const RouterLink* link, const RequestId& id) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    const RouterLink* owner = nullptr;  // of the request that is in the engine, or about to be
    bool submitting = false;
    std::uint64_t ticket = 0;            // of the owner's submission
    std::vector<CancelRequest> cancels;  // while submitting; at most one for each sequence
    std::deque<Submission> waiting;
  };
  absl::Mutex mu_;
  std::uint64_t last_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<RequestId, Entry> entries_ ABSL_GUARDED_BY(mu_);
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
    Submission submission{.link = shared_from_this(), .request = {}, .cancelled = {}, .ticket = 0};
    submission.cancelled.resize(request.sequences);
    submission.request = std::move(request);
    switch (registry_->Begin(submission)) {
      case RequestRegistry::Place::kNow:
        return SubmitNext(id);
      case RequestRegistry::Place::kWaits:
        return;
      case RequestRegistry::Place::kRefused:
        return Refuse(id, submission.request.attempt,
                      absl::AlreadyExistsError("requests of this id wait already"));
    }
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
    Submission ended;
    switch (registry_->Cancel(this, cancel, &ended)) {
      case RequestRegistry::Cancelled::kElsewhere:
        if (!registry_->Owns(this, cancel.request)) return;  // not this router's
        return engine_->Cancel(cancel);
      case RequestRegistry::Cancelled::kNoted:
        return;
      case RequestRegistry::Cancelled::kEnds:
        return EndCancelled(ended);
    }
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
      const CancelRequest all{.request = id, .sequence = std::nullopt, .keep_tokens = 0};
      Submission ended;  // nobody waits for its end
      if (registry_->Cancel(this, all, &ended) != RequestRegistry::Cancelled::kElsewhere) continue;
      if (registry_->Owns(this, id)) engine_->Cancel(all);
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
      if (!registry_->End(id)) continue;
      thread_->Post([self = shared_from_this(), id] { self->SubmitNext(id); });
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
  // Submits the next request of this id, which may be another link's.
  void SubmitNext(const RequestId& id) ABSL_LOCKS_EXCLUDED(mu_) {
    std::optional<Submission> next = registry_->Take(id);
    if (!next.has_value()) return;
    const std::shared_ptr<RouterLink> link = next->link;
    engine_->Submit(std::move(next->request), link);
    for (std::size_t i = 0; i < next->cancelled.size(); ++i) {
      if (!next->cancelled[i].has_value()) continue;
      const SequenceIndex sequence(static_cast<std::uint32_t>(i));
      engine_->Cancel({.request = id, .sequence = sequence, .keep_tokens = *next->cancelled[i]});
    }
    while (true) {
      const std::vector<CancelRequest> cancels = registry_->TakeCancels(id, next->ticket);
      if (cancels.empty()) break;
      for (const CancelRequest& cancel : cancels) engine_->Cancel(cancel);
    }
    // Leave may have been called before the request was in the engine.
    if (link->gone()) {
      engine_->Cancel({.request = id, .sequence = std::nullopt, .keep_tokens = 0});
    }
  }

  // Ends a request that was cancelled before it was in the engine.
  void EndCancelled(const Submission& submission) ABSL_LOCKS_EXCLUDED(mu_) {
    const TokenizedRequest& request = submission.request;
    codec::EngineUpdate update;
    update.events.push_back(Accepted{.request = request.id, .attempt = request.attempt});
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < submission.cancelled.size(); ++i) {
      const std::size_t known =
          i < request.output_prefix.size() ? request.output_prefix[i].size() : 0;
      const auto own = static_cast<std::uint32_t>(
          std::min<std::size_t>(known, submission.cancelled[i].value_or(0)));
      kept += own;
      update.events.push_back(SequenceEnd{.request = request.id,
                                          .attempt = request.attempt,
                                          .sequence = SequenceIndex(i),
                                          .reason = FinishReason::kCancelled,
                                          .output_tokens = own,
                                          .score = 0});
    }
    Usage usage;
    usage.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    usage.output_tokens = kept;
    update.events.push_back(RequestEnd{.request = request.id,
                                       .attempt = request.attempt,
                                       .status = absl::OkStatus(),
                                       .retry_after_ms = 0,
                                       .usage = usage});
    absl::MutexLock lock(&mu_);
    requests_.erase(request.id);
    Send(update);
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

RequestRegistry::Place RequestRegistry::Begin(Submission& submission) {
  absl::MutexLock lock(&mu_);
  const auto [at, added] = entries_.try_emplace(submission.request.id);
  std::deque<Submission>& waiting = at->second.waiting;
  if (waiting.size() >= kMostWaiting) return Place::kRefused;
  waiting.push_back(std::move(submission));
  return added ? Place::kNow : Place::kWaits;
}

bool RequestRegistry::End(const RequestId& id) {
  absl::MutexLock lock(&mu_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return false;
  at->second.owner = nullptr;
  if (!at->second.waiting.empty()) return true;
  entries_.erase(at);
  return false;
}

std::optional<Submission> RequestRegistry::Take(const RequestId& id) {
  absl::MutexLock lock(&mu_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return std::nullopt;
  Entry& entry = at->second;
  if (entry.waiting.empty()) {  // all that waited were cancelled
    entries_.erase(at);
    return std::nullopt;
  }
  Submission next = std::move(entry.waiting.front());
  entry.waiting.pop_front();
  entry.owner = next.link.get();
  entry.submitting = true;
  entry.ticket = next.ticket = ++last_ticket_;
  return next;
}

std::vector<CancelRequest> RequestRegistry::TakeCancels(const RequestId& id, std::uint64_t ticket) {
  absl::MutexLock lock(&mu_);
  const auto at = entries_.find(id);
  // It may have ended at once.
  if (at == entries_.end() || at->second.ticket != ticket) return {};
  at->second.submitting = !at->second.cancels.empty();
  return std::exchange(at->second.cancels, {});
}

RequestRegistry::Cancelled RequestRegistry::Cancel(const RouterLink* link,
                                                   const CancelRequest& cancel, Submission* ended) {
  absl::MutexLock lock(&mu_);
  const auto at = entries_.find(cancel.request);
  if (at == entries_.end()) return Cancelled::kElsewhere;
  Entry& entry = at->second;
  const auto waits = std::find_if(entry.waiting.begin(), entry.waiting.end(),
                                  [&](const Submission& one) { return one.link.get() == link; });
  if (waits != entry.waiting.end()) {
    if (!waits->Cancel(cancel)) return Cancelled::kNoted;
    *ended = std::move(*waits);
    entry.waiting.erase(waits);
    return Cancelled::kEnds;
  }
  if (entry.owner != link || !entry.submitting) return Cancelled::kElsewhere;
  const bool known =
      std::any_of(entry.cancels.begin(), entry.cancels.end(),
                  [&](const CancelRequest& other) { return other.sequence == cancel.sequence; });
  if (!known) entry.cancels.push_back(cancel);
  return Cancelled::kNoted;
}

bool RequestRegistry::Owns(const RouterLink* link, const RequestId& id) {
  absl::MutexLock lock(&mu_);
  const auto at = entries_.find(id);
  return at != entries_.end() && at->second.owner == link;
}

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
