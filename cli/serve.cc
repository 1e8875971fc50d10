#include "cli/serve.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/drain.h"
#include "cli/frontends.h"
#include "cli/model_flags.h"
#include "cli/observed_executor.h"
#include "cli/open_model.h"
#include "cli/request_log.h"
#include "cli/role_options.h"
#include "cli/signals.h"
#include "cli/skipped_tensors.h"
#include "common/obs/log.h"
#include "common/obs/process_metrics.h"
#include "common/rt/clock.h"
#include "model/checkpoint.h"
#include "rpc/grpc_log.h"
#include "scheduler/server/engine_loop.h"
#include "worker/exec/in_process_executor.h"

namespace flotilla::cli {
namespace {

// How long connections may take to send their last bytes once all requests have ended.
constexpr absl::Duration kCloseGrace = absl::Seconds(2);

// All roles, joined in one process. Members are destroyed from last to first.
class LocalFleet {
 public:
  explicit LocalFleet(Logger* log) : log_(log) {}

  // Loads the model and starts all roles; returns when requests are served.
  absl::Status Start(const RoleFlags& flags, const std::string& version);

  // Waits for a signal, then refuses new requests, lets running ones finish, and closes.
  void RunUntilStopped(Signals& signals, std::int64_t drain_seconds);

 private:
  absl::Status StartEngine(const RoleFlags& flags,
                           const std::shared_ptr<const model::Checkpoint>& file,
                           const TokenizerBundle& tokenizer);
  void PrintBanner(const RoleFlags& flags) const;

  Logger* const log_;
  const SteadyClock clock_;
  std::string model_id_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<router::RouterMetrics> router_metrics_;
  std::unique_ptr<worker::InProcessExecutor> executor_;
  std::unique_ptr<ObservedExecutor> observed_;
  std::unique_ptr<scheduler::InProcessEngine> engine_;
  std::unique_ptr<Frontends> frontends_;
};

absl::Status LocalFleet::Start(const RoleFlags& flags, const std::string& version) {
  model_id_ = ModelId(flags);
  const auto opened = OpenModel(flags);
  if (!opened.ok()) return opened.status();
  const std::shared_ptr<const model::Checkpoint>& file = *opened;
  const absl::StatusOr<TokenizerBundle> tokenizer = file->ReadTokenizer();
  if (!tokenizer.ok()) return tokenizer.status();
  LogSkippedTensors(*file, *log_);
  LogUnpackedTensors(*file, *log_);

  metrics_ = std::make_unique<Metrics>(Metrics::Labels{{"model", model_id_}});
  AddBuildInfo(*metrics_, version);
  AddProcessMetrics(*metrics_);
  WatchLog(*metrics_, log_);
  router_metrics_ = std::make_unique<router::RouterMetrics>(*metrics_);
  if (absl::Status status = StartEngine(flags, file, *tokenizer); !status.ok()) return status;

  frontends_ = Frontends::Create(
      flags,
      {.metrics = metrics_.get(), .unknown = router_metrics_.get(), .clock = &clock_, .log = log_});
  absl::Status added =
      frontends_->AddModel(model_id_, *tokenizer, engine_.get(), router_metrics_.get());
  if (!added.ok()) return added;
  if (absl::Status listening = frontends_->Listen(); !listening.ok()) return listening;
  PrintBanner(flags);
  return AnnounceFrontends(flags, *frontends_);
}

absl::Status LocalFleet::StartEngine(const RoleFlags& flags,
                                     const std::shared_ptr<const model::Checkpoint>& file,
                                     const TokenizerBundle& tokenizer) {
  absl::StatusOr<worker::RankOptions> options = MakeRankOptions(flags, model_id_);
  if (!options.ok()) return options.status();
  if (auto wrong = CheckModelFlags(flags, *options, *file); !wrong.ok()) return wrong;
  executor_ = std::make_unique<worker::InProcessExecutor>(file, *options, &clock_, log_);
  observed_ = std::make_unique<ObservedExecutor>(executor_.get(), PlanLog(log_));
  absl::StatusOr<scheduler::InProcessEngineOptions> engine =
      MakeEngineOptions(flags, TokenizerContentOf(tokenizer, model_id_), log_);
  if (!engine.ok()) return engine.status();
  engine->metrics = metrics_.get();
  engine_ =
      std::make_unique<scheduler::InProcessEngine>(*std::move(engine), observed_.get(), &clock_);
  router::WatchEngine(*metrics_, engine_.get());
  worker::WatchKvConfig(*metrics_, options->kv_format.Name(),
                        static_cast<std::uint32_t>(options->kv_format.block_tokens()),
                        &executor_->probe());
  worker::WatchWorker(*metrics_, &executor_->probe());
  if (absl::Status status = engine_->Start(); !status.ok()) return status;
  return engine_->WaitReady();
}

void LocalFleet::PrintBanner(const RoleFlags& flags) const {
  log_->Print(
      absl::StrFormat("\nflotilla serves %s\n"
                      "  compute  %s, KV %s, %d blocks of %d tokens, on %s\n%s",
                      model_id_, flags.compute, KvFormatsOf(flags)->Name(),
                      executor_->probe().kv_blocks.load(), KvFormatsOf(flags)->block_tokens(),
                      executor_->device().name, UsageText(flags, model_id_, *frontends_)));
}

void LocalFleet::RunUntilStopped(Signals& signals, std::int64_t drain_seconds) {
  if (!WaitAndDrain(*engine_, signals, drain_seconds, *log_)) {
    log_->Warning("requests are still running, ending them");
    engine_->Stop();
  }
  frontends_->Stop(kCloseGrace);
}

}  // namespace

absl::Status RunServe(const RoleFlags& flags, const std::string& version) {
  Signals signals;
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  if (absl::Status free = CheckPorts(flags, /*listens=*/false); !free.ok()) return free;
  Logger log(*level);
  const rpc::GrpcLog grpc_log(&log);
  LocalFleet fleet(&log);
  if (absl::Status status = fleet.Start(flags, version); !status.ok()) return status;
  fleet.RunUntilStopped(signals, flags.drain_seconds);
  return absl::OkStatus();
}

}  // namespace flotilla::cli
