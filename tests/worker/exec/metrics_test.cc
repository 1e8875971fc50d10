#include "worker/exec/metrics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace flotilla::worker {
namespace {

using ::testing::HasSubstr;

TEST(WorkerMetricsTest, RanksAreReadAtEachScrape) {
  Metrics metrics;
  testing::ManualClock clock;
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

}  // namespace
}  // namespace flotilla::worker
