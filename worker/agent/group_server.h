// GroupServer: the agent's gRPC endpoint, flotilla.v1.WorkerGroup.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/types/executor.h"
#include "rpc/endpoint.h"

namespace flotilla {

class GroupServer {
 public:
  // Starts `executor`, which outlives it, and serves it and the tokenizer when it
  // returns; whoever attaches learns of the group once it is ready. UNAVAILABLE: the
  // address cannot be listened on; else as StepExecutor::Start.
  static absl::StatusOr<std::unique_ptr<GroupServer>> Start(const rpc::ListenOptions& options,
                                                            TokenizerContent tokenizer,
                                                            StepExecutor* executor);
  // Stops, unless stopped.
  virtual ~GroupServer() = default;

  virtual std::uint16_t port() const = 0;
  // Ends the stream and the executor. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace flotilla
