#include "cli/router.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/drain.h"
#include "cli/fronts.h"
#include "cli/role_metrics.h"
#include "cli/role_options.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/obs/process_metrics.h"
#include "common/rt/clock.h"
#include "router/remote/remote_engine.h"

namespace flotilla {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(200);
constexpr absl::Duration kCloseGrace = absl::Seconds(2);

// What the scheduler serves, and the tokenizer of it. None: a signal came first.
struct Served {
  EngineDescription description;
  std::string tokenizer;
};
std::optional<Served> WaitForScheduler(const RemoteEngine& engine, const std::string& address,
                                       Signals& signals, Logger& log) {
  for (bool told = false;;) {
    absl::StatusOr<EngineDescription> description = engine.Describe();
    absl::Status missing = description.status();
    if (description.ok()) {
      absl::StatusOr<std::string> tokenizer = engine.TokenizerBytes();
      if (tokenizer.ok()) return Served{*std::move(description), *std::move(tokenizer)};
      missing = tokenizer.status();
    }
    if (!std::exchange(told, true)) {
      log.Info("waiting for the scheduler", {{"scheduler", address}, {"reason", missing}});
    }
    if (signals.Wait(kRetry) == Signals::Event::kStop) return std::nullopt;
  }
}

}  // namespace

absl::Status RunRouter(const RoleFlags& flags, const std::string& version) {
  Signals signals;
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  Logger log(*level);
  const SteadyClock clock;
  auto credentials = MakeCredentials(flags, /*listens=*/false, &clock, &log);
  if (!credentials.ok()) return credentials.status();

  RemoteEngine engine({.address = flags.scheduler,
                       .hold = absl::Seconds(flags.hold_seconds),
                       .credentials = *credentials},
                      &clock);
  engine.Start();
  const std::optional<Served> served = WaitForScheduler(engine, flags.scheduler, signals, log);
  if (!served.has_value()) return absl::OkStatus();
  absl::StatusOr<GgufFile> file = GgufFile::Parse(std::as_bytes(std::span(served->tokenizer)));
  if (!file.ok()) return file.status();
  const std::string& model_id = served->description.model_id;

  Metrics metrics(Metrics::Labels{{"model", model_id}});
  AddBuildInfo(metrics, version);
  AddProcessMetrics(metrics);
  RouterMetrics router_metrics(metrics);
  WatchEngine(metrics, &engine);
  absl::StatusOr<std::unique_ptr<Fronts>> fronts = Fronts::Start(flags, model_id, *file,
                                                                 {.engine = &engine,
                                                                  .metrics = &metrics,
                                                                  .probe = &router_metrics,
                                                                  .clock = &clock,
                                                                  .log = &log});
  if (!fronts.ok()) return fronts.status();
  absl::Status ready = WriteReadyFile(
      flags.ready_file, {{"http", (*fronts)->http_port()}, {"grpc", (*fronts)->grpc_port()}});
  if (!ready.ok()) return ready;
  absl::FPrintF(stderr, "\nflotilla routes to %s, which serves %s\n%s", flags.scheduler, model_id,
                UsageText(flags, model_id, **fronts));
  absl::PrintF("ready http=%s grpc=%s\n", HostPort(flags.host, (*fronts)->http_port()),
               (*fronts)->grpc_address());
  std::fflush(stdout);

  if (!WaitAndDrain(engine, signals, flags.drain_seconds, log)) {
    log.Warning("requests are still running, ending them", {});
    engine.Stop();
  }
  (*fronts)->Stop(kCloseGrace);
  engine.Stop();
  return absl::OkStatus();
}

}  // namespace flotilla
