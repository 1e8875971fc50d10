#include "cli/host.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "cli/role_metrics.h"
#include "cli/role_options.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/obs/metrics_server.h"
#include "common/obs/process_metrics.h"
#include "common/rt/clock.h"
#include "worker/hosts/host_server.h"

namespace flotilla {

absl::Status RunHost(const RoleFlags& flags, const std::string& version) {
  Signals signals;
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  Logger log(*level);
  const SteadyClock clock;
  auto credentials = MakeCredentials(flags, /*listens=*/true, &clock, &log);
  if (!credentials.ok()) return credentials.status();
  Metrics metrics;
  AddBuildInfo(metrics, version);
  AddProcessMetrics(metrics);
  auto metrics_server =
      MetricsServer::Start(HostPort(flags.host, static_cast<int>(flags.metrics_port)), &metrics);
  if (!metrics_server.ok()) return metrics_server.status();
  auto server = HostServer::Start({.listen = {.host = flags.host,
                                              .port = static_cast<std::uint16_t>(flags.listen_port),
                                              .credentials = *credentials}},
                                  &log);
  if (!server.ok()) return server.status();

  const int port = (*server)->port(), metrics_port = (*metrics_server)->port();
  absl::Status ready =
      WriteReadyFile(flags.ready_file, {{"listen", port}, {"metrics", metrics_port}});
  if (!ready.ok()) return ready;
  absl::PrintF("ready host=%s metrics=%s\n", HostPort(flags.host, port),
               HostPort(flags.host, metrics_port));
  std::fflush(stdout);
  signals.WaitForStop();
  (*server)->Stop();
  return absl::OkStatus();
}

}  // namespace flotilla
