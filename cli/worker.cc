#include "cli/worker.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/role_metrics.h"
#include "cli/role_options.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/obs/metrics_server.h"
#include "common/rt/clock.h"
#include "model/gguf.h"
#include "worker/agent/group_server.h"
#include "worker/in_process_executor.h"

namespace flotilla {

absl::Status RunWorker(const RoleFlags& flags, const std::string& version) {
  Signals signals;
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  Logger log(*level);
  const SteadyClock clock;

  const std::string model_id = ModelId(flags);
  absl::StatusOr<GgufFile> opened = GgufFile::Open(flags.model);
  if (!opened.ok()) return opened.status();
  auto file = std::make_shared<const GgufFile>(*std::move(opened));
  TokenizerContent tokenizer = TokenizerContentOf(*file, model_id);
  absl::StatusOr<RankOptions> options = MakeRankOptions(flags, model_id);
  if (!options.ok()) return options.status();

  Metrics metrics(Metrics::Labels{{"model", model_id}});
  AddBuildInfo(metrics, version);
  AddKvConfigInfo(metrics, flags.kv_type, static_cast<std::uint32_t>(flags.kv_blocks),
                  static_cast<std::uint32_t>(flags.block_tokens));
  InProcessExecutor executor(std::move(file), *std::move(options), &clock);
  WatchWorker(metrics, &executor.probe());
  auto metrics_server =
      MetricsServer::Start(HostPort(flags.host, static_cast<int>(flags.metrics_port)), &metrics);
  if (!metrics_server.ok()) return metrics_server.status();
  auto server = GroupServer::Start(
      {.host = flags.host, .port = static_cast<std::uint16_t>(flags.listen_port)},
      std::move(tokenizer), &executor);
  if (!server.ok()) return server.status();

  const int port = (*server)->port(), metrics_port = (*metrics_server)->port();
  absl::Status ready =
      WriteReadyFile(flags.ready_file, {{"listen", port}, {"metrics", metrics_port}});
  if (!ready.ok()) return ready;
  absl::PrintF("ready worker=%s metrics=%s\n", HostPort(flags.host, port),
               HostPort(flags.host, metrics_port));
  std::fflush(stdout);
  // Requests are the scheduler's: it has drained before its worker is stopped, or
  // computes them again elsewhere.
  const int number = signals.WaitForStop();
  log.Info("stopping", {{"signal", number}});
  (*server)->Stop();
  return absl::OkStatus();
}

}  // namespace flotilla
