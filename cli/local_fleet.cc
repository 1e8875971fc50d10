#include "cli/local_fleet.h"

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/drain.h"
#include "cli/model_flags.h"
#include "cli/open_model.h"
#include "cli/request_log.h"
#include "cli/role_options.h"
#include "cli/skipped_tensors.h"
#include "common/obs/process_metrics.h"

namespace flotilla::cli {
namespace {

// How long connections may take to send their last bytes once all requests have ended.
constexpr absl::Duration kCloseGrace = absl::Seconds(2);

}  // namespace

absl::Status LocalFleet::Load(const RoleFlags& flags, const std::string& version) {
  model_id_ = ModelId(flags);
  const auto opened = OpenModel(flags);
  if (!opened.ok()) return opened.status();
  const std::shared_ptr<const model::Checkpoint>& file = *opened;
  const absl::StatusOr<TokenizerBundle> tokenizer = ReadTokenizer(flags, *file);
  if (!tokenizer.ok()) return tokenizer.status();

  metrics_ = std::make_unique<Metrics>(Metrics::Labels{{"model", model_id_}});
  AddBuildInfo(*metrics_, version);
  AddProcessMetrics(*metrics_);
  WatchLog(*metrics_, log_);
  router_metrics_ = std::make_unique<router::RouterMetrics>(*metrics_);
  if (absl::Status status = StartEngine(flags, file, *tokenizer); !status.ok()) return status;

  frontends_ = Frontends::Create(
      flags,
      {.metrics = metrics_.get(), .unknown = router_metrics_.get(), .clock = &clock_, .log = log_});
  return frontends_->AddModel(model_id_, *tokenizer, engine_.get(), router_metrics_.get());
}

absl::Status LocalFleet::Listen(const RoleFlags& flags) {
  if (absl::Status listening = frontends_->Listen(); !listening.ok()) return listening;
  PrintBanner(flags);
  return AnnounceFrontends(flags, *frontends_);
}

absl::Status LocalFleet::StartEngine(const RoleFlags& flags,
                                     const std::shared_ptr<const model::Checkpoint>& file,
                                     const TokenizerBundle& tokenizer) {
  absl::StatusOr<worker::RankOptions> options = MakeRankOptions(flags, model_id_);
  if (!options.ok()) return options.status();
  LogTensors(*file, options->kv_format, *log_);
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
  const auto stop_batches = [this] { frontends_->StopBatches(); };
  if (!WaitAndDrain(*engine_, signals, drain_seconds, *log_, stop_batches)) {
    log_->Warning("requests are still running, ending them");
    engine_->Stop();
  }
  frontends_->Stop(kCloseGrace);
}

}  // namespace flotilla::cli
