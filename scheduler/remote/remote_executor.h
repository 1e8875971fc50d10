// RemoteExecutor: a StepExecutor that reaches its worker group through an agent, on one
// gRPC stream (flotilla.v1.WorkerGroup).
//
// When the stream breaks, the group is lost. The executor connects again until Stop, and a
// new stream starts a new epoch. Epochs are counted here, so that they ascend whichever
// agent answers.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/types/executor.h"
#include "rpc/reconnecting_client.h"

namespace flotilla::codec {
struct GroupReady;
}

namespace flotilla::scheduler {

class RemoteExecutor final : public StepExecutor {
 public:
  explicit RemoteExecutor(rpc::PeerOptions agent);
  ~RemoteExecutor() override;

  // Returns OK at once. It is no failure that no agent answers yet.
  absl::Status Start(ExecutorListener* listener) override;
  absl::Status Execute(StepPlan plan) override;
  void EndEpoch(Epoch epoch) override;
  // A listener's method must not call it.
  void Stop() override;

  // Asks the agent for the tokenizer of the group's model. It takes 10 seconds at most.
  // UNAVAILABLE: the agent does not answer.
  absl::StatusOr<TokenizerContent> FetchTokenizer() const;

  // Why there is no group now. OK: there is one, or no attempt was made yet.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Link;

  // The link calls these, one at a time. Not OK: the agent's event is against the protocol.
  absl::Status OnEvent(codec::GroupReady ready);
  absl::Status OnEvent(StepResult result);
  absl::Status OnEvent(Lost lost);
  // Reports the loss of the group if the listener has received its Ready.
  void OnBroken(const absl::Status& why);

  const std::unique_ptr<Link> link_;
  ExecutorListener* listener_ = nullptr;

  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  Epoch last_epoch_ ABSL_GUARDED_BY(mu_){0};
  // The epoch here and at the agent, between Ready and Lost.
  Epoch epoch_ ABSL_GUARDED_BY(mu_){0};  // 0: none
  Epoch agents_epoch_ ABSL_GUARDED_BY(mu_){0};
  bool accepting_ ABSL_GUARDED_BY(mu_) = false;  // plans of this epoch may be sent
  std::uint32_t room_ ABSL_GUARDED_BY(mu_) = 0;  // plans that may still be sent
  std::deque<Step> unanswered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::scheduler
