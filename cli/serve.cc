#include "cli/serve.h"

#include "absl/status/statusor.h"
#include "cli/local_fleet.h"
#include "cli/role_options.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "rpc/grpc_log.h"

namespace flotilla::cli {

absl::Status RunServe(const RoleFlags& flags, const std::string& version) {
  Signals signals;
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  if (absl::Status free = CheckPorts(flags, /*listens=*/false); !free.ok()) return free;
  Logger log(*level);
  const rpc::GrpcLog grpc_log(&log);
  LocalFleet fleet(&log);
  if (absl::Status status = fleet.Load(flags, version); !status.ok()) return status;
  if (absl::Status status = fleet.Listen(flags); !status.ok()) return status;
  fleet.RunUntilStopped(signals, flags.drain_seconds);
  return absl::OkStatus();
}

}  // namespace flotilla::cli
