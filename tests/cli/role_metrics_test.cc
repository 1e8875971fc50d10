#include "cli/role_metrics.h"

#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "cli/group_metrics.h"
#include "common/obs/process_metrics.h"
#include "common/rt/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/remote/fleet.h"
#include "tests/support/fake_engine.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

// A process that plays router and scheduler.
struct TwoRoles {
  TwoRoles() {
    AddBuildInfo(registry, "1");
    AddProcessMetrics(registry);
    AddKvConfigInfo(registry, "bf16", 64, 16);
  }
  std::string Render() { return registry.Render(); }

  Metrics registry{Metrics::Labels{{"model", "m"}}};
  RouterMetrics router{registry};
  SchedulerMetrics scheduler{registry, 16};
  ManualClock clock;
};

StepResult Step(std::uint32_t rows, std::uint32_t decode_rows,
                const std::vector<std::uint32_t>& lengths) {
  StepResult result;
  result.timings = {
      .start_ns = 0, .compute_ns = 3'000'000, .rows = rows, .decode_rows = decode_rows};
  for (std::uint32_t length : lengths) {
    SequenceResult sequence;
    sequence.length = length;
    result.sequences.push_back(sequence);
  }
  return result;
}

TEST(RoleMetricsTest, EverySeriesIsThereBeforeTheFirstRequest) {
  TwoRoles metrics;
  SchedulerProbe scheduler;
  metrics.scheduler.Watch(&scheduler, &metrics.clock);
  const std::string page = metrics.Render();
  for (const char* name :
       {"flotilla_kv_blocks{model=\"m\",state=\"free\"} 0", "flotilla_kv_waste_ratio",
        "flotilla_scheduler_batch_size_count", "flotilla_scheduler_requests_waiting",
        "flotilla_scheduler_step_duration_seconds_count{model=\"m\",phase=\"mixed\"} 0",
        "flotilla_router_time_to_first_token_seconds_count",
        "flotilla_router_inter_token_latency_seconds_count",
        "flotilla_scheduler_preemptions_total{model=\"m\",mode=\"recompute\",reason=\"no_tier\","
        "victim=\"decode\"} 0",
        "flotilla_scheduler_preempted_blocks_total{model=\"m\",mode=\"swap\",reason=\"cheaper\"} 0",
        "flotilla_scheduler_speculation_tokens_total{model=\"m\",kind=\"accepted\"} 0",
        "flotilla_router_cancelled_total{model=\"m\",by=\"client\"} 0",
        "flotilla_router_rejected_total{model=\"m\",reason=\"queue_full\"} 0",
        "flotilla_scheduler_group_ready{model=\"m\"} 0",
        "flotilla_scheduler_step_age_seconds{model=\"m\"} 0",
        "flotilla_router_requests_total{model=\"m\"} 0", "process_start_time_seconds{model=\"m\"} ",
        "flotilla_build_info"}) {
    EXPECT_THAT(page, HasSubstr(name));
  }
}

// What promtool's `check metrics` asks of names.
TEST(RoleMetricsTest, NamesFollowTheRules) {
  TwoRoles metrics;
  SchedulerProbe scheduler;
  metrics.scheduler.Watch(&scheduler, &metrics.clock);
  std::istringstream page(metrics.Render());
  const std::regex type_line(
      "# TYPE ((?:flotilla|process)_[a-z][a-z_]*) (counter|gauge|histogram)");
  std::set<std::string> seen;
  int families = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("# TYPE")) continue;
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, type_line)) << line;
    EXPECT_TRUE(seen.insert(match[1]).second) << line << " appears twice";
    EXPECT_EQ(match[2] == "counter", std::string(match[1]).ends_with("_total")) << line;
    ++families;
  }
  EXPECT_GT(families, 20);
}

TEST(RoleMetricsTest, StepsAreSortedByWhatTheyDid) {
  TwoRoles metrics;
  metrics.scheduler.OnStep(Step(8, 8, {1, 2}));
  metrics.scheduler.OnStep(Step(8, 0, {8}));
  metrics.scheduler.OnStep(Step(8, 3, {8, 24}));
  metrics.scheduler.OnStep(Step(0, 0, {}));  // nothing was computed: not a step
  const std::string page = metrics.Render();
  for (const char* phase : {"decode", "prefill", "mixed"}) {
    EXPECT_THAT(page, HasSubstr(std::string("flotilla_scheduler_step_duration_seconds_count{"
                                            "model=\"m\",phase=\"") +
                                phase + "\"} 1"));
  }
  EXPECT_THAT(page, HasSubstr("flotilla_scheduler_batch_size_sum{model=\"m\"} 5"));
  // 8 + 24 tokens in 16 + 32 slots.
  EXPECT_THAT(page, HasSubstr("flotilla_kv_waste_ratio{model=\"m\"} 0.3333"));
}

TEST(RoleMetricsTest, RefusalsAreCountedByReason) {
  TwoRoles metrics;
  metrics.router.OnRefused(absl::ResourceExhaustedError("full"));
  metrics.router.OnRefused(absl::UnavailableError("draining"));
  metrics.router.OnRefused(absl::OutOfRangeError("long"));
  metrics.router.OnRefused(absl::InvalidArgumentError("bad"));
  metrics.router.OnRefused(absl::NotFoundError("model"));
  metrics.router.OnRefused(absl::UnauthenticatedError("key"));
  metrics.router.OnRefused(absl::InternalError("?"));
  const std::string page = metrics.Render();
  for (const auto& [reason, count] : {std::pair{"queue_full", "1"},
                                      {"draining", "1"},
                                      {"too_long", "1"},
                                      {"invalid", "2"},
                                      {"deadline", "0"},
                                      {"unauthenticated", "1"},
                                      {"other", "1"}}) {
    EXPECT_THAT(page,
                HasSubstr(std::string("flotilla_router_rejected_total{model=\"m\",reason=\"") +
                          reason + "\"} " + count + "\n"));
  }
}

TEST(RoleMetricsTest, TheSchedulerIsReadAtEachScrape) {
  TwoRoles metrics;
  SchedulerProbe scheduler;
  metrics.scheduler.Watch(&scheduler, &metrics.clock);
  CoreSnapshot core;
  core.load.blocks_total = 10;
  core.load.blocks_used = 4;
  core.blocks_cached = 1;
  PreemptionTotals& computed =
      core.counters.preempted[static_cast<std::size_t>(PreemptionReason::kRecomputed)];
  core.counters.replays = 2;
  computed = {.count = 7, .decoding = 5, .blocks = 12, .cost_ns = 250'000'000};
  scheduler.OnState(0, core);
  std::string page = metrics.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_kv_blocks{model=\"m\",state=\"free\"} 5"));
  EXPECT_THAT(page, HasSubstr("flotilla_kv_blocks{model=\"m\",state=\"cached\"} 1"));
  EXPECT_THAT(page, HasSubstr("flotilla_kv_utilization_ratio{model=\"m\"} 0.4"));
  EXPECT_THAT(page, HasSubstr("flotilla_scheduler_recomputed_requests_total{model=\"m\"} 2\n"));
  const std::string labels = "{model=\"m\",mode=\"recompute\",reason=\"cheaper\"";
  const std::string preemptions = "flotilla_scheduler_preemptions_total" + labels;
  EXPECT_THAT(page, HasSubstr(preemptions + ",victim=\"decode\"} 5"));
  EXPECT_THAT(page, HasSubstr(preemptions + ",victim=\"prefill\"} 2"));
  EXPECT_THAT(page, HasSubstr("flotilla_scheduler_preempted_blocks_total" + labels + "} 12"));
  EXPECT_THAT(page,
              HasSubstr("flotilla_scheduler_preemption_cost_seconds_total" + labels + "} 0.25"));
  core.load.blocks_used = 0;
  ++computed.count;
  scheduler.OnState(0, core);
  page = metrics.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_kv_blocks{model=\"m\",state=\"used\"} 0"));
  EXPECT_THAT(page, HasSubstr(preemptions + ",victim=\"prefill\"} 3"));
}

TEST(RoleMetricsTest, AStepThatDoesNotComeAges) {
  TwoRoles metrics;
  SchedulerProbe scheduler;
  metrics.scheduler.Watch(&scheduler, &metrics.clock);
  const auto expect_age = [&metrics](const std::string& seconds) {
    EXPECT_THAT(metrics.Render(),
                HasSubstr("flotilla_scheduler_step_age_seconds{model=\"m\"} " + seconds + "\n"));
  };
  CoreSnapshot core;
  metrics.clock.AdvanceNs(5'000'000'000);
  scheduler.OnState(metrics.clock.NowNs(), core);
  expect_age("0");

  core.in_flight = 1;  // a plan was sent
  scheduler.OnState(metrics.clock.NowNs(), core);
  metrics.clock.AdvanceNs(2'000'000'000);
  core.in_flight = 2;  // and another: the first is still the one that is waited for
  scheduler.OnState(metrics.clock.NowNs(), core);
  expect_age("2");

  scheduler.OnStepDone(metrics.clock.NowNs(), StepTimings{});
  core.in_flight = 1;
  scheduler.OnState(metrics.clock.NowNs(), core);
  expect_age("0");
  metrics.clock.AdvanceNs(1'500'000'000);
  expect_age("1.5");

  scheduler.OnStepDone(metrics.clock.NowNs(), StepTimings{});
  core.in_flight = 0;
  scheduler.OnState(metrics.clock.NowNs(), core);
  metrics.clock.AdvanceNs(60'000'000'000);
  expect_age("0");  // idle is not late
}

TEST(RoleMetricsTest, RequestsInFlightComeAndGo) {
  TwoRoles metrics;
  metrics.router.OnStarted();
  metrics.router.OnStarted();
  metrics.router.OnEnded();
  const std::string page = metrics.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_router_requests_total{model=\"m\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_requests_in_flight{model=\"m\"} 1\n"));
}

TEST(RoleMetricsTest, ARouterIsReadyWhenItsEngineIs) {
  FakeEngine engine;
  engine.SetReady(false);
  Metrics metrics;
  WatchEngine(metrics, &engine);
  const auto expect = [&metrics](const char* ready, const char* draining) {
    const std::string page = metrics.Render();
    EXPECT_THAT(page, HasSubstr(std::string("\nflotilla_router_ready ") + ready + "\n"));
    EXPECT_THAT(page, HasSubstr(std::string("\nflotilla_router_draining ") + draining + "\n"));
  };
  expect("0", "0");
  engine.SetReady(true);
  expect("1", "0");
  engine.Drain([] {});
  expect("0", "1");
}

TEST(RoleMetricsTest, RanksAreReadAtEachScrape) {
  Metrics metrics;
  ManualClock clock;
  GroupProbe group(2);
  WatchGroup(metrics, &group, &clock);
  std::string page = metrics.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_worker_up{rank=\"1\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_heartbeat_age_seconds{rank=\"1\"} 0"));
  for (const char* cause : {"died", "stopped", "silent", "stuck", "garbage"}) {
    EXPECT_THAT(
        page, HasSubstr(std::string("flotilla_worker_restarts_total{cause=\"") + cause + "\"} 0"));
  }
  clock.AdvanceNs(10'000'000'000);
  group.ranks[1].up = true;
  group.ranks[1].heartbeat_ns = 8'000'000'000;
  group.ranks[1].cpu_ns = 2'500'000'000;
  group.ranks[1].resident_bytes = 1 << 20;
  ++group.restarts[static_cast<std::size_t>(Fault::kStuck)];
  page = metrics.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_worker_up{rank=\"0\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_up{rank=\"1\"} 1"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_heartbeat_age_seconds{rank=\"1\"} 2"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_restarts_total{cause=\"stuck\"} 1"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_rank_cpu_seconds_total{rank=\"0\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_rank_cpu_seconds_total{rank=\"1\"} 2.5"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_rank_resident_memory_bytes{rank=\"1\"} 1048576"));
}

TEST(RoleMetricsTest, ARouterShowsItsGroupsAndKeepsThoseThatLeft) {
  const SteadyClock clock;
  Fleet fleet({}, &clock);
  Metrics registry;
  WatchFleet(registry, &fleet);
  EXPECT_THAT(registry.Render(),
              HasSubstr("flotilla_router_replays_total{kind=\"begun\",result=\"sent\"} 0"));
  fleet.SetAddresses({"127.0.0.1:1"});  // where nobody listens
  const char* kUp = "flotilla_router_replica_up{replica=\"127.0.0.1:1\"} 0";
  const std::string page = registry.Render();
  EXPECT_THAT(page, HasSubstr(kUp));
  EXPECT_THAT(page,
              HasSubstr("flotilla_router_replica_outstanding_tokens{replica=\"127.0.0.1:1\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_replica_requests_total{replica=\"127.0.0.1:1\"} 0"));
  fleet.SetAddresses({});
  EXPECT_THAT(registry.Render(), HasSubstr(kUp));
}

TEST(RoleMetricsTest, ModelsOfOneRouterAreToldApart) {
  Metrics registry;
  RouterMetrics a(registry, {{"model", "a"}}), b(registry, {{"model", "b"}});
  b.OnReplayed();
  b.OnRefused(absl::ResourceExhaustedError("full"));
  const std::string page = registry.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_router_retries_total{model=\"a\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_retries_total{model=\"b\"} 1"));
  EXPECT_THAT(page,
              HasSubstr("flotilla_router_rejected_total{model=\"b\",reason=\"queue_full\"} 1"));
}

}  // namespace
}  // namespace flotilla
