#include "scheduler/remote/remote_executor.h"

#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "flotilla/v1/worker.grpc.pb.h"
#include "proto/codec/group.h"
#include "proto/codec/status.h"
#include "rpc/endpoint.h"
#include "rpc/stream.h"

namespace flotilla {
namespace {

constexpr char kStarting[] = "attached; the worker group is not ready yet";
constexpr absl::Duration kTokenizerTimeout = absl::Seconds(10);

}  // namespace

// One stream, from its connection to its end.
class RemoteExecutor::Link final
    : private rpc::ClientStream<v1::GroupCommand, v1::GroupEvent>::Handler {
 public:
  explicit Link(RemoteExecutor* executor)
      : executor_(executor),
        stub_(v1::WorkerGroup::NewStub(
            rpc::ConnectTo(executor->options_.address, executor->options_.credentials.get()))),
        stream_(executor->options_.poller, this) {}

  // Messages are received from this call on.
  void Begin() { stream_.Begin(stub_->PrepareAsyncAttach(&stream_.context(), stream_.queue())); }

  void Send(const GroupCommand& command) {
    v1::GroupCommand message;
    ToProto(command, &message);
    stream_.Send(std::move(message));
  }
  void Cancel() { stream_.Cancel(); }
  absl::Status Wait() {
    const grpc::Status status = stream_.Wait();
    if (!refused_.ok()) return refused_;
    return status.ok() ? absl::UnavailableError("the agent ended the stream")
                       : ToAbslStatus(status);
  }

 private:
  void OnOpen() override {
    absl::MutexLock lock(&executor_->mu_);
    executor_->status_ = absl::UnavailableError(kStarting);
  }

  void OnMessage(const v1::GroupEvent& message) override {
    absl::StatusOr<GroupEvent> event = FromProto(message);
    if (!refused_.ok()) return;
    if (event.ok()) {
      std::visit([this](auto& e) { refused_ = Deliver(std::move(e)); }, *event);
    } else {
      refused_ = event.status();
    }
    if (!refused_.ok()) Cancel();
  }

  absl::Status Deliver(GroupReady ready) {
    RemoteExecutor& self = *executor_;
    Epoch epoch;
    {
      absl::MutexLock lock(&self.mu_);
      if (self.stopped_) return absl::OkStatus();
      if (self.epoch_ != Epoch{0}) return absl::InternalError("the agent is ready within an epoch");
      epoch = self.last_epoch_ = self.epoch_ = Epoch(self.last_epoch_.value() + 1);
      self.agents_epoch_ = ready.epoch;
      self.accepting_ = true;
      self.room_ = ready.description.lag + 1;
      self.unanswered_.clear();
      self.status_ = absl::OkStatus();
    }
    self.listener_->OnReady(epoch, ready.description);
    return absl::OkStatus();
  }

  absl::Status Deliver(StepResult result) {
    RemoteExecutor& self = *executor_;
    {
      absl::MutexLock lock(&self.mu_);
      if (self.stopped_) return absl::OkStatus();
      if (self.epoch_ == Epoch{0} || result.epoch != self.agents_epoch_) {
        return absl::InternalError("the agent sent a result of another epoch");
      }
      result.epoch = self.epoch_;
      ++self.room_;
      if (!self.unanswered_.empty()) self.unanswered_.pop_front();
    }
    self.listener_->OnResult(std::move(result));
    return absl::OkStatus();
  }

  absl::Status Deliver(Lost lost) {
    RemoteExecutor& self = *executor_;
    {
      absl::MutexLock lock(&self.mu_);
      if (self.stopped_) return absl::OkStatus();
      if (self.epoch_ == Epoch{0} || lost.epoch != self.agents_epoch_) {
        return absl::InternalError("the agent lost another epoch");
      }
      lost.epoch = std::exchange(self.epoch_, Epoch{0});
      self.accepting_ = false;
    }
    self.listener_->OnLost(lost);
    return absl::OkStatus();
  }

  RemoteExecutor* const executor_;
  const std::unique_ptr<v1::WorkerGroup::Stub> stub_;
  absl::Status refused_;  // used by the stream's callbacks, then by Wait
  rpc::ClientStream<v1::GroupCommand, v1::GroupEvent> stream_;
};

RemoteExecutor::RemoteExecutor(RemoteExecutorOptions options) : options_(std::move(options)) {}
RemoteExecutor::~RemoteExecutor() { Stop(); }

absl::Status RemoteExecutor::Start(ExecutorListener* listener) {
  listener_ = listener;
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

absl::Status RemoteExecutor::Execute(StepPlan plan) {
  absl::MutexLock lock(&mu_);
  if (stopped_ || !accepting_ || plan.epoch != epoch_ || link_ == nullptr) {
    return absl::FailedPreconditionError("not the current epoch");
  }
  if (room_ == 0) return absl::ResourceExhaustedError("lag + 1 plans are unanswered");
  --room_;
  unanswered_.push_back(plan.step);
  plan.epoch = agents_epoch_;
  link_->Send(GroupCommand(std::move(plan)));
  return absl::OkStatus();
}

void RemoteExecutor::EndEpoch(Epoch epoch) {
  absl::MutexLock lock(&mu_);
  if (stopped_ || !accepting_ || epoch != epoch_ || link_ == nullptr) return;
  accepting_ = false;
  link_->Send(GroupCommand(flotilla::EndEpoch{agents_epoch_}));
}

void RemoteExecutor::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    if (link_ != nullptr) link_->Cancel();
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<TokenizerContent> RemoteExecutor::FetchTokenizer() const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTokenizerTimeout));
  v1::TokenizerContent content;
  const grpc::Status status =
      v1::WorkerGroup::NewStub(rpc::ConnectTo(options_.address, options_.credentials.get()))
          ->GetTokenizer(&context, {}, &content);
  if (!status.ok()) return ToAbslStatus(status);
  return TokenizerContent{.model_id = content.model_id(),
                          .hash = content.hash(),
                          .content = std::move(*content.mutable_content())};
}

absl::Status RemoteExecutor::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

void RemoteExecutor::Loop() {
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
    }
    OnBroken(why);
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stopped_), rpc::RetryDelay(why, options_.retry)))
      return;
  }
}

void RemoteExecutor::OnBroken(const absl::Status& why) {
  Lost lost{.cause = Lost::Cause::kDied, .detail = why.ToString(), .started = {}};
  {
    absl::MutexLock lock(&mu_);
    status_ = why;
    if (stopped_ || epoch_ == Epoch{0}) return;
    lost.epoch = std::exchange(epoch_, Epoch{0});
    accepting_ = false;
    // The agent did not say which step it was computing. It is the oldest unanswered one, if
    // there is any.
    if (!unanswered_.empty()) lost.started = {unanswered_.front()};
  }
  listener_->OnLost(lost);
}

}  // namespace flotilla
