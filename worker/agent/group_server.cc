#include "worker/agent/group_server.h"

#include <utility>

#include "flotilla/v1/worker.grpc.pb.h"
#include "proto/codec/group.h"
#include "proto/codec/status.h"
#include "rpc/stream.h"
#include "worker/agent/group_link.h"

namespace flotilla {
namespace {

// One Attach call.
class SchedulerStream final : public rpc::ServerStream<v1::GroupCommand, v1::GroupEvent>,
                              private AttachedScheduler {
 public:
  explicit SchedulerStream(GroupLink* link) : link_(link) {
    if (const absl::Status attached = link_->Attach(this); !attached.ok()) {
      Close(ToGrpcStatus(attached, {}));
      return;
    }
    Begin();
  }

 private:
  bool OnMessage(const v1::GroupCommand& message) override {
    absl::StatusOr<GroupCommand> command = FromProto(message);
    if (!command.ok()) {
      Close(ToGrpcStatus(command.status(), {}));
      return false;
    }
    link_->Handle(this, *std::move(command));
    return true;
  }

  void OnGone() override { link_->Detach(this); }

  void Send(const GroupEvent& event) override {
    v1::GroupEvent message;
    ToProto(event, &message);
    ServerStream::Send(std::move(message));
  }

  GroupLink* const link_;
};

class Service final : public v1::WorkerGroup::CallbackService {
 public:
  Service(TokenizerContent tokenizer, GroupLink* link)
      : tokenizer_(std::move(tokenizer)), link_(link) {}

  grpc::ServerBidiReactor<v1::GroupCommand, v1::GroupEvent>* Attach(
      grpc::CallbackServerContext*) override {
    return new SchedulerStream(link_);
  }

  grpc::ServerUnaryReactor* GetTokenizer(grpc::CallbackServerContext* context,
                                         const v1::TokenizerRequest*,
                                         v1::TokenizerContent* content) override {
    content->set_hash(tokenizer_.hash);
    content->set_content(tokenizer_.content);
    content->set_model_id(tokenizer_.model_id);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const TokenizerContent tokenizer_;
  GroupLink* const link_;
};

class GroupServerImpl final : public GroupServer {
 public:
  GroupServerImpl(TokenizerContent tokenizer, StepExecutor* executor)
      : executor_(executor), link_(executor), service_(std::move(tokenizer), &link_) {}
  ~GroupServerImpl() override { Stop(); }

  absl::Status Begin(const rpc::ListenOptions& options) {
    absl::StatusOr<rpc::Listening> listening = rpc::Listen(options, {&service_});
    if (!listening.ok()) return listening.status();
    listening_ = *std::move(listening);
    return executor_->Start(&link_);
  }

  std::uint16_t port() const override { return listening_.port; }

  void Stop() override {
    listening_.Stop();
    executor_->Stop();
  }

 private:
  StepExecutor* const executor_;
  GroupLink link_;
  Service service_;
  rpc::Listening listening_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GroupServer>> GroupServer::Start(const rpc::ListenOptions& options,
                                                                TokenizerContent tokenizer,
                                                                StepExecutor* executor) {
  auto server = std::make_unique<GroupServerImpl>(std::move(tokenizer), executor);
  if (absl::Status status = server->Begin(options); !status.ok()) return status;
  return server;
}

}  // namespace flotilla
