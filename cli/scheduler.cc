#include "cli/scheduler.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "cli/drain.h"
#include "cli/observed_executor.h"
#include "cli/request_log.h"
#include "cli/role_options.h"
#include "cli/role_process.h"
#include "cli/signals.h"
#include "cli/stop_listener.h"
#include "cli/worker_group.h"
#include "common/obs/log.h"
#include "rpc/endpoint.h"
#include "scheduler/remote/engine_server.h"
#include "scheduler/remote/remote_executor.h"
#include "scheduler/server/engine_loop.h"

namespace flotilla::cli {
namespace {

constexpr absl::Duration kTokenizerRetry = absl::Milliseconds(200);

// Waits for the group's agent and returns the tokenizer of its model. None: the process was
// asked to stop meanwhile.
std::optional<TokenizerContent> WaitForTokenizer(const scheduler::RemoteExecutor& executor,
                                                 const std::string& address, Signals& signals,
                                                 Logger& log) {
  absl::StatusOr<TokenizerContent> tokenizer = executor.FetchTokenizer();
  for (bool logged = false; !tokenizer.ok(); tokenizer = executor.FetchTokenizer()) {
    if (!std::exchange(logged, true)) {
      log.Info("waiting for the worker group",
               {{"worker", address}, {"reason", tokenizer.status()}});
    }
    const absl::Duration delay = rpc::RetryDelay(tokenizer.status(), kTokenizerRetry);
    if (signals.Wait(delay) == Signals::Event::kStop) return std::nullopt;
  }
  return *std::move(tokenizer);
}

}  // namespace

absl::Status RunScheduler(const RoleFlags& flags, const std::string& version) {
  auto process = RoleProcess::Begin(flags, /*listens=*/true);
  if (!process.ok()) return process.status();
  Signals& signals = (*process)->signals;
  const Clock& clock = (*process)->clock;
  Logger& log = (*process)->log;
  const std::shared_ptr<rpc::Credentials>& credentials = (*process)->credentials;

  // The worker group is either behind an agent or in this process.
  std::unique_ptr<WorkerGroup> own;
  std::optional<scheduler::RemoteExecutor> remote;
  std::optional<TokenizerContent> tokenizer;
  if (!flags.worker.empty()) {
    remote.emplace(rpc::PeerOptions{
        .address = flags.worker, .credentials = credentials, .poller = (*process)->poller});
    tokenizer = WaitForTokenizer(*remote, flags.worker, signals, log);
    if (!tokenizer.has_value()) return absl::OkStatus();
  } else if (!flags.model.empty()) {
    auto created = WorkerGroup::Create(flags, &clock, &log);
    if (!created.ok()) return created.status();
    own = *std::move(created);
    tokenizer = own->tokenizer();
  } else {
    return absl::InvalidArgumentError(
        "flotilla scheduler needs --worker HOST:PORT, the address of a worker, or --model PATH, "
        "which makes it run the worker group itself");
  }

  Metrics metrics(Metrics::Labels{{"model", tokenizer->model_id}});
  AddRoleMetrics(metrics, **process, version);
  if (own != nullptr) own->AddMetrics(metrics);
  StepExecutor* const executor = own != nullptr ? own->executor() : &*remote;
  ObservedExecutor observed(executor, own != nullptr ? PlanLog(&log) : nullptr);
  absl::StatusOr<scheduler::InProcessEngineOptions> options =
      MakeEngineOptions(flags, *std::move(tokenizer), &log);
  if (!options.ok()) return options.status();
  options->metrics = &metrics;
  options->rounds_on_senders = own == nullptr || own->has_own_processes();
  options->on_unusable = [&signals] { signals.Stop(); };
  scheduler::InProcessEngine engine(*std::move(options), &observed, &clock);
  auto metrics_server = ServeMetrics(flags, &metrics);
  if (!metrics_server.ok()) return metrics_server.status();
  StopListener starting(&signals, [&own] {
    if (own != nullptr) own->StopProcesses();
  });
  const absl::Status started = engine.Start();
  if (starting.End()) return absl::OkStatus();
  if (!started.ok()) return started;
  auto server = scheduler::EngineServer::Start(
      {.listen = {.host = flags.host,
                  .port = static_cast<std::uint16_t>(flags.listen_port),
                  .credentials = credentials,
                  .poller = (*process)->poller}},
      &engine, &clock);
  if (!server.ok()) return server.status();

  absl::Status ready = AnnounceReady(flags, "scheduler", (*server)->port(), **metrics_server);
  if (!ready.ok()) return ready;

  if (!WaitAndDrain(engine, signals, flags.drain_seconds, log)) {
    log.Warning("requests are still running; routers submit them again", {});
  }
  // The error of a group that turned out not to be usable.
  const absl::Status usable = engine.Describe().status();
  (*server)->Stop();
  engine.Stop();
  return absl::IsUnavailable(usable) ? absl::OkStatus() : usable;
}

}  // namespace flotilla::cli
