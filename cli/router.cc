#include "cli/router.h"

#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/drain.h"
#include "cli/frontends.h"
#include "cli/role_options.h"
#include "cli/role_process.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/obs/process_metrics.h"
#include "router/remote/discovery.h"
#include "router/remote/fleet.h"
#include "router/remote/fleet_engine.h"
#include "router/remote/metrics.h"
#include "rpc/metrics.h"

namespace flotilla::cli {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(200);
constexpr absl::Duration kLong = absl::Hours(1);
constexpr absl::Duration kRouterCloseGrace = absl::Seconds(2);

router::FleetOptions MakeFleetOptions(const RoleFlags& flags, RoleProcess& process) {
  Signals& signals = process.signals;
  Logger& log = process.log;
  router::FleetOptions options;
  options.credentials = process.credentials;
  options.poller = process.poller;
  options.core.hold_ns = absl::ToInt64Nanoseconds(absl::Seconds(flags.hold_seconds));
  options.core.move_after_ns = absl::ToInt64Nanoseconds(absl::Seconds(flags.move_after_seconds));
  std::random_device random;
  options.core.seed = (std::uint64_t{random()} << 32) | random();
  options.on_attached = [&](const std::string& address, const EngineDescription& description) {
    log.Info("scheduler attached", {{"scheduler", address}, {"model", description.model_id}});
    signals.Wake();  // the scheduler may have a new model
  };
  options.on_lost = [&log](const std::string& address, const absl::Status& why) {
    log.Warning("scheduler lost", {{"scheduler", address}, {"reason", why}});
  };
  return options;
}

router::DiscoveryOptions MakeDiscoveryOptions(const RoleFlags& flags, router::Fleet& fleet,
                                              Logger& log) {
  router::DiscoveryOptions options;
  options.targets = flags.schedulers;
  options.on_addresses = [&](const std::vector<std::string>& addresses) {
    log.Info("schedulers known", {{"addresses", absl::StrJoin(addresses, " ")}});
    fleet.SetAddresses(addresses);
  };
  options.on_failure = [&log](const router::DnsName& name, const absl::Status& why) {
    log.Warning("name not resolved, its last addresses stay",
                {{"name", name.host}, {"reason", why}});
  };
  return options;
}

// The models of the schedulers, each with an engine and metrics. They are added to the
// frontends when they first appear. Main's thread.
class RouterModels {
 public:
  // The arguments outlive this object, and this object outlives the frontends.
  RouterModels(router::Fleet* fleet, Metrics* metrics, std::string version, Logger* log)
      : fleet_(fleet), metrics_(metrics), version_(std::move(version)), log_(log) {}

  // False: a model could not be added yet; the caller should try again.
  bool AddNew(Frontends& frontends) {
    const std::vector<std::string> models = fleet_->Models();
    while (next_ < models.size()) {
      const absl::Status added = Add(next_, models[next_], frontends);
      // A model whose tokenizer can never be used is skipped.
      if (absl::IsUnavailable(added) || absl::IsDeadlineExceeded(added)) return false;
      if (!added.ok()) {
        log_->Error("model not usable", {{"model", models[next_]}, {"reason", added}});
      } else {
        served_.push_back(models[next_]);
      }
      ++next_;
    }
    return true;
  }
  const std::vector<std::string>& served() const { return served_; }

 private:
  struct Model {
    Model(router::Fleet* fleet, std::size_t index, Metrics& metrics, const Metrics::Labels& labels)
        : engine(fleet, index), requests(metrics, labels) {}
    router::FleetEngine engine;
    router::RouterMetrics requests;
  };

  absl::Status Add(std::size_t index, const std::string& name, Frontends& frontends) {
    router::FleetEngine engine(fleet_, index);
    const absl::StatusOr<std::string> content = engine.TokenizerBytes();
    if (!content.ok()) return content.status();
    const absl::StatusOr<TokenizerBundle> tokenizer = ReadTokenizerContent(*content);
    if (!tokenizer.ok()) return tokenizer.status();
    const Metrics::Labels labels = {{"model", name}};
    models_.push_back(std::make_unique<Model>(fleet_, index, *metrics_, labels));
    AddBuildInfo(*metrics_, version_, labels);
    router::WatchEngine(*metrics_, &models_.back()->engine, labels);
    return frontends.AddModel(name, *tokenizer, &models_.back()->engine, &models_.back()->requests);
  }

  router::Fleet* const fleet_;
  Metrics* const metrics_;
  const std::string version_;
  Logger* const log_;
  std::size_t next_ = 0;  // index of the fleet's next model to add
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<std::string> served_;
};

}  // namespace

absl::Status RunRouter(const RoleFlags& flags, const std::string& version) {
  auto process = RoleProcess::Begin(flags, /*listens=*/false);
  if (!process.ok()) return process.status();
  Signals& signals = (*process)->signals;
  const Clock& clock = (*process)->clock;
  Logger& log = (*process)->log;
  const std::shared_ptr<rpc::Credentials>& credentials = (*process)->credentials;

  router::Fleet fleet(MakeFleetOptions(flags, **process), &clock);
  absl::StatusOr<std::unique_ptr<router::Discovery>> discovery =
      router::Discovery::Start(MakeDiscoveryOptions(flags, fleet, log));
  if (!discovery.ok()) return discovery.status();

  Metrics metrics;
  // A model name that a client invents never becomes a label.
  router::RouterMetrics unknown(metrics, {{"model", "_unknown"}});
  AddProcessMetrics(metrics);
  WatchLog(metrics, &log);
  rpc::WatchCertificate(metrics, credentials.get());
  router::WatchFleet(metrics, &fleet);
  RouterModels models(&fleet, &metrics, version, &log);
  const std::unique_ptr<Frontends> frontends =
      Frontends::Create(flags, {.metrics = &metrics,
                                .unknown = &unknown,
                                .clock = &clock,
                                .log = &log,
                                .poller = (*process)->poller});
  while (!models.AddNew(*frontends) || models.served().empty()) {
    if (signals.Wait(kRetry) == Signals::Event::kStop) return absl::OkStatus();
  }
  if (absl::Status status = frontends->Listen(); !status.ok()) return status;
  log.Print(absl::StrFormat(
      "\nflotilla routes to %s, which serve %s\n%s", absl::StrJoin(flags.schedulers, " "),
      absl::StrJoin(models.served(), " "), UsageText(flags, models.served().front(), *frontends)));
  if (absl::Status ready = AnnounceFrontends(flags, *frontends); !ready.ok()) return ready;

  bool all_added = true;
  while (signals.Wait(all_added ? kLong : kRetry) != Signals::Event::kStop) {
    all_added = models.AddNew(*frontends);
  }
  log.Info("stopping", {{"drain_seconds", flags.drain_seconds}});
  frontends->StopBatches();
  const auto drain = [&fleet](std::function<void()> done) { fleet.Drain(std::move(done)); };
  if (!Drain(drain, signals, flags.drain_seconds)) {
    log.Warning("requests are still running, ending them", {});
    fleet.Stop();
  }
  frontends->Stop(kRouterCloseGrace);
  discovery->reset();
  fleet.Stop();
  return absl::OkStatus();
}

}  // namespace flotilla::cli
