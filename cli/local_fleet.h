// LocalFleet: every role in one process. It has the same objects that a fleet spreads over
// machines, joined by the in-process implementations of the seams:
//
//   HTTP and gRPC frontends -> InferenceService -> Engine -> StepExecutor
//
// Owned by main; all calls are on its thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "cli/flags.h"
#include "cli/frontends.h"
#include "cli/observed_executor.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "common/types/tokenizer_bundle.h"
#include "model/checkpoint.h"
#include "router/metrics.h"
#include "router/service.h"
#include "scheduler/server/engine_loop.h"
#include "worker/exec/in_process_executor.h"

namespace flotilla::cli {

// Members are destroyed from last to first.
class LocalFleet {
 public:
  explicit LocalFleet(Logger* log) : log_(log) {}

  // Loads the model and starts the engine; returns when service() serves requests. Errors: the
  // model cannot be read or served.
  absl::Status Load(const RoleFlags& flags, const std::string& version);

  // Serves clients, too; called after Load. Errors: the process cannot listen on an address.
  absl::Status Listen(const RoleFlags& flags);

  // Lives as long as this object. Called after Load.
  router::InferenceService& service() { return frontends_->service(); }

  // Waits for a signal, then refuses new requests, lets running ones finish, and closes.
  void RunUntilStopped(Signals& signals, std::int64_t drain_seconds);

 private:
  absl::Status StartEngine(const RoleFlags& flags,
                           const std::shared_ptr<const model::Checkpoint>& file,
                           const TokenizerBundle& tokenizer);
  void PrintBanner(const RoleFlags& flags) const;

  Logger* const log_;
  const SteadyClock clock_;
  std::string model_id_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<router::RouterMetrics> router_metrics_;
  std::unique_ptr<worker::InProcessExecutor> executor_;
  std::unique_ptr<ObservedExecutor> observed_;
  std::unique_ptr<scheduler::InProcessEngine> engine_;
  std::unique_ptr<Frontends> frontends_;
};

}  // namespace flotilla::cli
