#include "worker/exec/metrics.h"

#include <optional>
#include <vector>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "worker/exec/load_log.h"

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
  for (const char* cause : {"died", "stopped", "silent", "stuck", "garbage", "stalled"}) {
    EXPECT_THAT(
        page, HasSubstr(std::string("flotilla_worker_restarts_total{cause=\"") + cause + "\"} 0"));
  }
  clock.AdvanceNs(10'000'000'000);
  group.ranks[1].up = true;
  group.ranks[1].loading = true;
  group.ranks[1].load_phase = LoadPhase::kHash;
  group.ranks[1].loaded_bytes = 3;
  group.ranks[1].load_bytes = 7;
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
  EXPECT_THAT(page, HasSubstr("flotilla_worker_rank_loading{phase=\"hash\",rank=\"1\"} 1"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_rank_loading{phase=\"weights\",rank=\"1\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_rank_loaded_bytes{rank=\"1\"} 3"));
  EXPECT_THAT(page, HasSubstr("flotilla_worker_rank_load_bytes{rank=\"1\"} 7"));
}

TEST(LoadLogTest, ALineEveryFiveSecondsHasRateAndTimeLeft) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  constexpr std::uint64_t kMb = 1'000'000;
  using Line = LoadLog::Line;
  GroupProbe group(2);
  LoadLog log;
  EXPECT_EQ(log.Next(kSecond, group), std::nullopt);
  for (GroupProbe::Rank& rank : group.ranks) {
    rank.loading = true;
    rank.load_phase = LoadPhase::kWeights;
    rank.load_bytes = 1000 * kMb;
  }
  group.ranks[0].loaded_bytes = 900 * kMb;
  group.ranks[1].loaded_bytes = 100 * kMb;
  Line line{
      .rank = 1, .phase = LoadPhase::kWeights, .loaded_bytes = 100 * kMb, .load_bytes = 1000 * kMb};
  EXPECT_EQ(log.Next(5 * kSecond, group), std::nullopt);
  EXPECT_EQ(log.Next(6 * kSecond, group), line);
  line.loaded_bytes = group.ranks[1].loaded_bytes = 200 * kMb;
  line.bytes_per_second = 20 * kMb;
  line.seconds_left = 40;
  EXPECT_EQ(log.Next(10 * kSecond, group), std::nullopt);
  EXPECT_EQ(log.Next(11 * kSecond, group), line);
  group.ranks[1].load_phase = LoadPhase::kHash;  // now rank 0 is behind
  line = {.phase = LoadPhase::kWeights, .loaded_bytes = 900 * kMb, .load_bytes = 1000 * kMb};
  EXPECT_EQ(log.Next(16 * kSecond, group), line);
  for (GroupProbe::Rank& rank : group.ranks) rank.loading = false;
  EXPECT_EQ(log.Next(60 * kSecond, group), std::nullopt);
}

}  // namespace
}  // namespace flotilla::worker
