#include "cli/worker.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "cli/observed_executor.h"
#include "cli/request_log.h"
#include "cli/role_metrics.h"
#include "cli/role_options.h"
#include "cli/signals.h"
#include "cli/stop_listener.h"
#include "cli/worker_group.h"
#include "common/obs/log.h"
#include "common/obs/metrics_server.h"
#include "common/obs/process_metrics.h"
#include "common/rt/clock.h"
#include "worker/agent/group_server.h"

namespace flotilla {

absl::Status RunWorker(const RoleFlags& flags, const std::string& version) {
  Signals signals;
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  Logger log(*level);
  const SteadyClock clock;
  auto credentials = MakeCredentials(flags, /*listens=*/true, &clock, &log);
  if (!credentials.ok()) return credentials.status();

  auto created = WorkerGroup::Create(flags, &clock, &log);
  if (!created.ok()) return created.status();
  WorkerGroup& group = **created;
  Metrics metrics(Metrics::Labels{{"model", group.tokenizer().model_id}});
  AddBuildInfo(metrics, version);
  AddProcessMetrics(metrics);
  group.AddMetrics(metrics);
  StopListener stop(&signals, [&] {
    log.Info("stopping");
    group.StopProcesses();
  });
  auto metrics_server =
      MetricsServer::Start(HostPort(flags.host, static_cast<int>(flags.metrics_port)), &metrics);
  if (!metrics_server.ok()) return metrics_server.status();
  ObservedExecutor observed(group.executor(), {.on_plan = PlanLog(&log), .on_result = nullptr});
  auto server = GroupServer::Start({.host = flags.host,
                                    .port = static_cast<std::uint16_t>(flags.listen_port),
                                    .credentials = *credentials},
                                   group.tokenizer(), &observed);
  if (!server.ok()) return stop.End() ? absl::OkStatus() : server.status();

  const int port = (*server)->port(), metrics_port = (*metrics_server)->port();
  absl::Status ready =
      WriteReadyFile(flags.ready_file, {{"listen", port}, {"metrics", metrics_port}});
  if (!ready.ok()) return ready;
  absl::PrintF("ready worker=%s metrics=%s\n", HostPort(flags.host, port),
               HostPort(flags.host, metrics_port));
  std::fflush(stdout);
  // Requests are the scheduler's: it has drained before its worker is stopped, or
  // computes them again elsewhere.
  stop.WaitForStop();
  (*server)->Stop();
  return absl::OkStatus();
}

}  // namespace flotilla
