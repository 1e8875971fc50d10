#include "cli/node.h"

#include "cli/role_options.h"
#include "cli/role_process.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "worker/hosts/host_server.h"

namespace flotilla::cli {

absl::Status RunNode(const RoleFlags& flags, const std::string& version) {
  auto process = RoleProcess::Begin(flags, /*listens=*/true);
  if (!process.ok()) return process.status();
  Signals& signals = (*process)->signals;
  Logger& log = (*process)->log;
  const std::shared_ptr<rpc::Credentials>& credentials = (*process)->credentials;
  Metrics metrics;
  AddRoleMetrics(metrics, **process, version);
  auto metrics_server = ServeMetrics(flags, &metrics);
  if (!metrics_server.ok()) return metrics_server.status();
  auto server =
      worker::HostServer::Start({.listen = {.host = flags.host,
                                            .port = static_cast<std::uint16_t>(flags.listen_port),
                                            .credentials = credentials}},
                                &log);
  if (!server.ok()) return server.status();

  absl::Status ready = AnnounceReady(flags, "node", (*server)->port(), **metrics_server);
  if (!ready.ok()) return ready;
  signals.WaitForStop();
  (*server)->Stop();
  return absl::OkStatus();
}

}  // namespace flotilla::cli
