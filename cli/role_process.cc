#include "cli/role_process.h"

#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/role_options.h"
#include "common/obs/process_metrics.h"
#include "rpc/metrics.h"

namespace flotilla::cli {

absl::StatusOr<std::unique_ptr<RoleProcess>> RoleProcess::Begin(const RoleFlags& flags,
                                                                bool listens) {
  const absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  std::unique_ptr<RoleProcess> process(new RoleProcess(*level));
  auto credentials = MakeCredentials(flags, listens, &process->clock, &process->log);
  if (!credentials.ok()) return credentials.status();
  process->credentials = *std::move(credentials);
  if (absl::Status free = CheckPorts(flags, listens); !free.ok()) return free;
  process->poller = std::make_shared<rpc::Poller>();
  return process;
}

void AddRoleMetrics(Metrics& metrics, const RoleProcess& process, const std::string& version) {
  AddBuildInfo(metrics, version);
  AddProcessMetrics(metrics);
  WatchLog(metrics, &process.log);
  rpc::WatchCertificate(metrics, process.credentials.get());
}

absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(const RoleFlags& flags,
                                                            Metrics* metrics) {
  return MetricsServer::Start(HostPort(flags.host, static_cast<int>(flags.metrics_port)), metrics);
}

absl::Status AnnounceReady(const RoleFlags& flags, std::string_view role, std::uint16_t port,
                           const MetricsServer& metrics) {
  absl::Status written =
      WriteReadyFile(flags.ready_file, {{"listen", port}, {"metrics", metrics.port()}});
  if (!written.ok()) return written;
  absl::PrintF("ready %s=%s metrics=%s\n", role, HostPort(flags.host, port),
               HostPort(flags.host, metrics.port()));
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace flotilla::cli
