#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "common/obs/process_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/metrics.h"
#include "scheduler/server/metrics.h"
#include "tests/support/manual_clock.h"
#include "worker/exec/metrics.h"

namespace flotilla::cli {
namespace {

using ::testing::HasSubstr;

// A process that plays router and scheduler.
struct TwoRoles {
  TwoRoles() {
    AddBuildInfo(registry, "1");
    AddProcessMetrics(registry);
    worker.kv_blocks = 64;
    worker::WatchKvConfig(registry, "bf16", 16, &worker);
  }
  std::string Render() { return registry.Render(); }

  Metrics registry{Metrics::Labels{{"model", "m"}}};
  router::RouterMetrics router{registry};
  worker::WorkerProbe worker;
  scheduler::SchedulerProbe probe;
  testing::ManualClock clock;
  scheduler::SchedulerMetrics scheduler{registry, &probe, &clock};
};

TEST(MetricNamesTest, EverySeriesIsThereBeforeTheFirstRequest) {
  TwoRoles metrics;
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
TEST(MetricNamesTest, NamesFollowTheRules) {
  TwoRoles metrics;
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

}  // namespace
}  // namespace flotilla::cli
