#include "cli/worker.h"

#include "cli/observed_executor.h"
#include "cli/request_log.h"
#include "cli/role_options.h"
#include "cli/role_process.h"
#include "cli/signals.h"
#include "cli/stop_listener.h"
#include "cli/worker_group.h"
#include "common/obs/log.h"
#include "worker/agent/group_server.h"

namespace flotilla::cli {

absl::Status RunWorker(const RoleFlags& flags, const std::string& version) {
  auto process = RoleProcess::Begin(flags, /*listens=*/true);
  if (!process.ok()) return process.status();
  Signals& signals = (*process)->signals;
  const Clock& clock = (*process)->clock;
  Logger& log = (*process)->log;
  const std::shared_ptr<rpc::Credentials>& credentials = (*process)->credentials;

  auto created = WorkerGroup::Create(flags, &clock, &log);
  if (!created.ok()) return created.status();
  WorkerGroup& group = **created;
  Metrics metrics(Metrics::Labels{{"model", group.tokenizer().model_id}});
  AddRoleMetrics(metrics, **process, version);
  group.AddMetrics(metrics);
  StopListener stop(&signals, [&] {
    log.Info("stopping");
    group.StopProcesses();
  });
  auto metrics_server = ServeMetrics(flags, &metrics);
  if (!metrics_server.ok()) return metrics_server.status();
  ObservedExecutor observed(group.executor(), PlanLog(&log));
  auto server = worker::GroupServer::Start({.host = flags.host,
                                            .port = static_cast<std::uint16_t>(flags.listen_port),
                                            .credentials = credentials,
                                            .poller = (*process)->poller},
                                           group.tokenizer(), &observed);
  if (!server.ok()) return stop.End() ? absl::OkStatus() : server.status();

  absl::Status ready = AnnounceReady(flags, "worker", (*server)->port(), **metrics_server);
  if (!ready.ok()) return ready;
  // The worker need not drain, because the scheduler owns the requests. Either the scheduler has
  // drained before its worker is stopped, or it computes the requests again elsewhere.
  stop.WaitForStop();
  (*server)->Stop();
  return absl::OkStatus();
}

}  // namespace flotilla::cli
