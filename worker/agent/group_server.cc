#include "worker/agent/group_server.h"

#include <atomic>
#include <utility>

#include "flotilla/v1/worker.grpc.pb.h"
#include "proto/codec/group.h"
#include "proto/codec/status.h"
#include "rpc/server.h"
#include "rpc/stream.h"
#include "worker/agent/group_link.h"

namespace flotilla::worker {
namespace {

// How long the last events may take to reach the scheduler.
constexpr absl::Duration kLastEvents = absl::Seconds(2);

// One Attach call.
class SchedulerStream final : public rpc::ServerStream<v1::GroupCommand, v1::GroupEvent>,
                              private AttachedScheduler {
 public:
  SchedulerStream(std::unique_ptr<Call> call, GroupLink* link)
      : ServerStream(std::move(call)), link_(link) {
    if (const absl::Status attached = link_->Attach(this); !attached.ok()) {
      ServerStream::Close(codec::ToGrpcStatus(attached, {}));
      return;
    }
    Begin();
  }

 private:
  bool OnMessage(const v1::GroupCommand& message) override {
    absl::StatusOr<codec::GroupCommand> command = codec::FromProto(message);
    if (!command.ok()) {
      ServerStream::Close(codec::ToGrpcStatus(command.status(), {}));
      return false;
    }
    link_->Handle(this, *std::move(command));
    return true;
  }

  void OnGone() override { link_->Detach(this); }
  void Close() override { CloseWhenWritten(); }

  void Send(const codec::GroupEvent& event) override {
    v1::GroupEvent message;
    codec::ToProto(event, &message);
    ServerStream::Send(std::move(message));
  }

  GroupLink* const link_;
};

class GroupServerImpl final : public GroupServer {
 public:
  GroupServerImpl(std::shared_ptr<rpc::Poller> poller, TokenizerContent tokenizer,
                  StepExecutor* executor)
      : tokenizer_(std::move(tokenizer)),
        executor_(executor),
        link_(executor),
        server_(std::move(poller)) {}
  ~GroupServerImpl() override { Stop(); }

  absl::Status Begin(const rpc::ListenOptions& options) {
    if (absl::Status status = server_.Listen(options, {&service_}); !status.ok()) return status;
    server_.OnStream(&service_, &v1::WorkerGroup::AsyncService::RequestAttach,
                     [this](auto call) { new SchedulerStream(std::move(call), &link_); });
    server_.OnCall(&service_, &v1::WorkerGroup::AsyncService::RequestGetTokenizer,
                   [this](auto* call) {
                     call->response.set_hash(tokenizer_.hash);
                     call->response.set_content(tokenizer_.content);
                     call->response.set_model_id(tokenizer_.model_id);
                     call->Finish(grpc::Status::OK);
                   });
    return executor_->Start(&link_);
  }

  std::uint16_t port() const override { return server_.port(); }

  void Drain(std::function<void()> done) override {
    drained_ = true;
    link_.Drain(std::move(done));
  }

  void Stop() override {
    link_.EndDrain();
    server_.Stop(drained_ ? kLastEvents : absl::ZeroDuration());
    executor_->Stop();
  }

 private:
  const TokenizerContent tokenizer_;
  StepExecutor* const executor_;
  GroupLink link_;
  v1::WorkerGroup::AsyncService service_;
  rpc::Server server_;
  std::atomic<bool> drained_{false};
};

}  // namespace

absl::StatusOr<std::unique_ptr<GroupServer>> GroupServer::Start(const rpc::ListenOptions& options,
                                                                TokenizerContent tokenizer,
                                                                StepExecutor* executor) {
  auto server = std::make_unique<GroupServerImpl>(options.poller, std::move(tokenizer), executor);
  if (absl::Status status = server->Begin(options); !status.ok()) return status;
  return server;
}

}  // namespace flotilla::worker
