#include "cli/worker.h"

#include <functional>
#include <utility>

#include "cli/drain.h"
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
  // From here on a request to stop drains.
  if (stop.End()) return absl::OkStatus();
  if (!server.ok()) return server.status();

  absl::Status ready = AnnounceReady(flags, "worker", (*server)->port(), **metrics_server);
  if (!ready.ok()) return ready;
  // The scheduler owns the requests. The worker finishes the steps under way and says that it
  // stops; the scheduler then waits for its next start, or gives the requests back to the routers.
  const int number = signals.WaitForStop();
  log.Info("stopping", {{"signal", number}, {"step_seconds", flags.stop_step_seconds}});
  if (!Drain([&](std::function<void()> done) { (*server)->Drain(std::move(done)); }, signals,
             flags.stop_step_seconds)) {
    log.Warning("a step has not ended; the scheduler computes it again", {});
  }
  (*server)->Stop();
  return absl::OkStatus();
}

}  // namespace flotilla::cli
