#include "cli/worker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "cli/observed_executor.h"
#include "cli/request_log.h"
#include "cli/role_metrics.h"
#include "cli/role_options.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/obs/metrics_server.h"
#include "common/obs/process_metrics.h"
#include "common/rt/clock.h"
#include "model/gguf.h"
#include "worker/agent/group_server.h"
#include "worker/cpu_quota.h"
#include "worker/group/process_executor.h"
#include "worker/in_process_executor.h"

namespace flotilla {
namespace {

// The group of ranks: processes, or one in this process.
class Group {
 public:
  Group(const RoleFlags& flags, std::shared_ptr<const GgufFile> file, RankOptions options,
        const Clock* clock, Logger* log) {
    if (flags.launcher == "none") {
      in_process_.emplace(std::move(file), std::move(options), clock);
    } else {
      processes_.emplace(ProcessOptions(flags), clock, log);
    }
  }

  StepExecutor* executor() {
    if (in_process_.has_value()) return &*in_process_;
    return &*processes_;
  }
  void Watch(Metrics& metrics, const Clock* clock) {
    WatchWorker(metrics, in_process_.has_value() ? &in_process_->probe() : &processes_->probe());
    if (processes_.has_value()) WatchGroup(metrics, &processes_->group_probe(), clock);
  }
  // Also ends a start that goes on for ever. Any thread.
  void StopProcesses() {
    if (processes_.has_value()) processes_->Stop();
  }

 private:
  static ProcessExecutorOptions ProcessOptions(const RoleFlags& flags) {
    RoleFlags rank = flags;
    const std::int64_t ranks = flags.tensor_parallel * flags.pipeline_parallel;
    if (rank.threads == 0) rank.threads = std::max<std::int64_t>(1, AvailableCpus() / ranks);
    std::error_code unknown;
    ProcessExecutorOptions options;
    options.group.command = {std::filesystem::read_symlink("/proc/self/exe", unknown), "rank"};
    for (std::string& word : RankArguments(rank)) options.group.command.push_back(std::move(word));
    options.group.ranks = static_cast<int>(ranks);
    const char* temporary = std::getenv("TMPDIR");
    options.group.temporary = temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary;
    return options;
  }

  std::optional<InProcessExecutor> in_process_;  // one of the two
  std::optional<ProcessExecutor> processes_;
};

// Hears of a request to stop from the beginning on: a group may take for ever to start.
class StopListener {
 public:
  StopListener(Signals* signals, Group* group, Logger* log)
      : signals_(signals), thread_([this, group, log] {
          Signals::Event event;
          do {
            event = signals_->Wait(absl::Hours(1));
          } while (event == Signals::Event::kTimeout);
          if (event != Signals::Event::kStop) return;
          log->Info("stopping");
          group->StopProcesses();
          stopped_.Notify();
        }) {}
  ~StopListener() {
    signals_->Wake();
    thread_.join();
  }

  void WaitForStop() { stopped_.WaitForNotification(); }
  bool stopped() const { return stopped_.HasBeenNotified(); }

 private:
  Signals* const signals_;
  absl::Notification stopped_;
  std::thread thread_;
};

}  // namespace

absl::Status RunWorker(const RoleFlags& flags, const std::string& version) {
  Signals signals;
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  Logger log(*level);
  const SteadyClock clock;
  auto credentials = MakeCredentials(flags, /*listens=*/true, &clock, &log);
  if (!credentials.ok()) return credentials.status();

  const std::string model_id = ModelId(flags);
  absl::StatusOr<GgufFile> opened = GgufFile::Open(flags.model);
  if (!opened.ok()) return opened.status();
  auto file = std::make_shared<const GgufFile>(*std::move(opened));
  TokenizerContent tokenizer = TokenizerContentOf(*file, model_id);
  absl::StatusOr<RankOptions> options = MakeRankOptions(flags, model_id);
  if (!options.ok()) return options.status();

  Metrics metrics(Metrics::Labels{{"model", model_id}});
  AddBuildInfo(metrics, version);
  AddProcessMetrics(metrics);
  AddKvConfigInfo(metrics, flags.kv_type, static_cast<std::uint32_t>(flags.kv_blocks),
                  static_cast<std::uint32_t>(flags.block_tokens));
  Group group(flags, std::move(file), *std::move(options), &clock, &log);
  group.Watch(metrics, &clock);
  StopListener stop(&signals, &group, &log);
  auto metrics_server =
      MetricsServer::Start(HostPort(flags.host, static_cast<int>(flags.metrics_port)), &metrics);
  if (!metrics_server.ok()) return metrics_server.status();
  ObservedExecutor observed(group.executor(), {.on_plan = PlanLog(&log), .on_result = nullptr});
  auto server = GroupServer::Start({.host = flags.host,
                                    .port = static_cast<std::uint16_t>(flags.listen_port),
                                    .credentials = *credentials},
                                   std::move(tokenizer), &observed);
  if (!server.ok()) return stop.stopped() ? absl::OkStatus() : server.status();

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
