#include "scheduler/remote/remote_executor.h"

#include <utility>
#include <variant>

#include "flotilla/v1/worker.grpc.pb.h"
#include "proto/codec/group.h"

namespace flotilla::scheduler {

// The connection to the agent.
struct RemoteExecutor::Link {
  void Send(const codec::GroupCommand& command) {
    v1::GroupCommand message;
    codec::ToProto(command, &message);
    client.Send(std::move(message));
  }

  rpc::ReconnectingClient<v1::WorkerGroup, v1::GroupCommand, v1::GroupEvent> client;
};

RemoteExecutor::RemoteExecutor(rpc::PeerOptions agent)
    : link_(new Link{
          {std::move(agent),
           &v1::WorkerGroup::Stub::PrepareAsyncAttach,
           "the agent",
           {.on_open =
                [this] {
                  absl::MutexLock lock(&mu_);
                  status_ = absl::UnavailableError("attached; the worker group is not ready yet");
                },
            .on_message =
                [this](const v1::GroupEvent& message) {
                  absl::StatusOr<codec::GroupEvent> event = codec::FromProto(message);
                  if (!event.ok()) return event.status();
                  return std::visit([this](auto& e) { return OnEvent(std::move(e)); }, *event);
                },
            .on_broken = [this](const absl::Status& why) { OnBroken(why); }}}}) {}
RemoteExecutor::~RemoteExecutor() { Stop(); }

absl::Status RemoteExecutor::Start(ExecutorListener* listener) {
  listener_ = listener;
  link_->client.Start();
  return absl::OkStatus();
}

absl::Status RemoteExecutor::Execute(StepPlan plan) {
  absl::MutexLock lock(&mu_);
  if (!accepting_ || plan.epoch != epoch_) {
    return absl::FailedPreconditionError("not the current epoch");
  }
  if (room_ == 0) return absl::ResourceExhaustedError("lag + 1 plans are unanswered");
  --room_;
  unanswered_.push_back(plan.step);
  plan.epoch = agents_epoch_;
  link_->Send(codec::GroupCommand(std::move(plan)));
  return absl::OkStatus();
}

void RemoteExecutor::EndEpoch(Epoch epoch) {
  absl::MutexLock lock(&mu_);
  if (!accepting_ || epoch != epoch_) return;
  accepting_ = false;
  link_->Send(codec::GroupCommand(flotilla::codec::EndEpoch{agents_epoch_}));
}

void RemoteExecutor::Stop() {
  link_->client.Stop();
  absl::MutexLock lock(&mu_);
  accepting_ = false;
}

absl::StatusOr<TokenizerContent> RemoteExecutor::FetchTokenizer() const {
  absl::StatusOr<v1::TokenizerContent> answer =
      link_->client.Call(&v1::WorkerGroup::Stub::GetTokenizer);
  if (!answer.ok()) return answer.status();
  return TokenizerContent{.model_id = answer->model_id(),
                          .hash = answer->hash(),
                          .content = std::move(*answer->mutable_content())};
}

absl::Status RemoteExecutor::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

absl::Status RemoteExecutor::OnEvent(codec::GroupReady ready) {
  Epoch epoch;
  {
    absl::MutexLock lock(&mu_);
    if (epoch_ != Epoch{0}) return absl::InternalError("the agent is ready within an epoch");
    epoch = last_epoch_ = epoch_ = Epoch(last_epoch_.value() + 1);
    agents_epoch_ = ready.epoch;
    accepting_ = true;
    room_ = ready.description.lag + 1;
    unanswered_.clear();
    status_ = absl::OkStatus();
  }
  listener_->OnReady(epoch, ready.description);
  return absl::OkStatus();
}

absl::Status RemoteExecutor::OnEvent(StepResult result) {
  {
    absl::MutexLock lock(&mu_);
    if (epoch_ == Epoch{0} || result.epoch != agents_epoch_) {
      return absl::InternalError("the agent sent a result of another epoch");
    }
    result.epoch = epoch_;
    ++room_;
    if (!unanswered_.empty()) unanswered_.pop_front();
  }
  listener_->OnResult(std::move(result));
  return absl::OkStatus();
}

absl::Status RemoteExecutor::OnEvent(Lost lost) {
  {
    absl::MutexLock lock(&mu_);
    if (epoch_ == Epoch{0} || lost.epoch != agents_epoch_) {
      return absl::InternalError("the agent lost another epoch");
    }
    lost.epoch = std::exchange(epoch_, Epoch{0});
    accepting_ = false;
  }
  listener_->OnLost(lost);
  return absl::OkStatus();
}

void RemoteExecutor::OnBroken(const absl::Status& why) {
  Lost lost{.cause = Lost::Cause::kDied, .detail = why.ToString(), .started = {}};
  {
    absl::MutexLock lock(&mu_);
    status_ = why;
    if (epoch_ == Epoch{0}) return;
    lost.epoch = std::exchange(epoch_, Epoch{0});
    accepting_ = false;
    // The agent did not say which step it was computing. It is the oldest unanswered one, if
    // there is any.
    if (!unanswered_.empty()) lost.started = {unanswered_.front()};
    lost.blames_requests = !lost.started.empty();
  }
  listener_->OnLost(lost);
}

}  // namespace flotilla::scheduler
