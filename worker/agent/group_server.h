// GroupServer: the agent's gRPC endpoint, flotilla.v1.WorkerGroup.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/types/executor.h"
#include "rpc/endpoint.h"

namespace flotilla::worker {

class GroupServer {
 public:
  // Starts `executor`, which outlives the server. Once Start returns, the server serves the
  // executor and the tokenizer. A scheduler that attaches learns of the group once the
  // group is ready. UNAVAILABLE: the server cannot listen on the address; other errors as
  // for StepExecutor::Start.
  static absl::StatusOr<std::unique_ptr<GroupServer>> Start(const rpc::ListenOptions& options,
                                                            TokenizerContent tokenizer,
                                                            StepExecutor* executor);
  // Stops the server, unless it is stopped.
  virtual ~GroupServer() = default;

  virtual std::uint16_t port() const = 0;
  // Takes no more plans, and calls `done` when those that it has are answered, and the scheduler
  // was told that the worker stops. `done` must not block; it may be called at once, or by Stop.
  // Called once.
  virtual void Drain(std::function<void()> done) = 0;
  // Ends the stream and the executor. After Drain, the scheduler is told that the worker stops even
  // if plans are not answered; otherwise the group is lost for it. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace flotilla::worker
