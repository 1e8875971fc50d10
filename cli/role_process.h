// What every process of a fleet does first and last.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/flags.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"
#include "common/obs/metrics_server.h"
#include "common/rt/clock.h"
#include "rpc/credentials.h"
#include "rpc/grpc_log.h"
#include "rpc/poller.h"

namespace flotilla::cli {

// Main makes it before any thread starts and destroys it last, because all else uses it.
struct RoleProcess {
  // `listens`: whether the rest of the fleet calls this process. Errors name the flag.
  static absl::StatusOr<std::unique_ptr<RoleProcess>> Begin(const RoleFlags& flags, bool listens);

  Signals signals;
  SteadyClock clock;
  Logger log;
  const rpc::GrpcLog grpc_log{&log};
  std::shared_ptr<rpc::Credentials> credentials;
  std::shared_ptr<rpc::Poller> poller;  // receives all of the process's gRPC

 private:
  explicit RoleProcess(LogLevel level) : log(level) {}
};

// Adds the metrics that every process has, among them when its certificate expires. `process`
// outlives the last Render.
void AddRoleMetrics(Metrics& metrics, const RoleProcess& process, const std::string& version);

// Serves `metrics` at --metrics-port. UNAVAILABLE: the port is taken.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(const RoleFlags& flags,
                                                            Metrics* metrics);

// Writes the ready file and the line that says that `role` listens for the fleet at `port`.
absl::Status AnnounceReady(const RoleFlags& flags, std::string_view role, std::uint16_t port,
                           const MetricsServer& metrics);

}  // namespace flotilla::cli
