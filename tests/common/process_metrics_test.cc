#include "common/obs/process_metrics.h"

#include <ctime>
#include <string>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace flotilla {
namespace {

double Value(Metrics& metrics, const std::string& name) {
  const std::string page = metrics.Render();
  const std::size_t at = page.find("\n" + name + " ");
  double value = -1;
  if (at == std::string::npos) return value;
  const std::size_t begin = at + name.size() + 2;
  EXPECT_TRUE(absl::SimpleAtod(page.substr(begin, page.find('\n', begin) - begin), &value));
  return value;
}

TEST(ProcessMetricsTest, ANameMayHoldAnything) {
  // Fields 14, 15: times; 20: threads; 22: start; 24: pages.
  const std::string text =
      "7 (a) S 9) S 1 7 7 0 -1 4194304 10 0 0 0 300 40 0 0 20 0 5 0 123456 1000000 2048 0\n";
  const absl::StatusOr<ProcessStat> stat = ParseProcessStat(text);
  ASSERT_TRUE(stat.ok()) << stat.status();
  EXPECT_EQ(*stat, (ProcessStat{
                       .cpu_ticks = 340, .threads = 5, .start_ticks = 123456, .rss_pages = 2048}));
}

TEST(ProcessMetricsTest, WhatIsNoStatIsRefused) {
  EXPECT_FALSE(ParseProcessStat("").ok());
  EXPECT_FALSE(ParseProcessStat("7 (a) S 1 7").ok());
  EXPECT_FALSE(
      ParseProcessStat("7 (a) S 1 7 7 0 -1 0 10 0 0 0 x 40 0 0 20 0 5 0 123456 1000000 2048").ok());
}

TEST(ProcessMetricsTest, ThisProcessIsSeen) {
  Metrics metrics;
  AddProcessMetrics(metrics);
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_NEAR(Value(metrics, "process_start_time_seconds"), now, 600);
  EXPECT_GT(Value(metrics, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(Value(metrics, "process_threads"), 1);
  EXPECT_GE(Value(metrics, "process_open_fds"), 3);
  EXPECT_GE(Value(metrics, "process_max_fds"), Value(metrics, "process_open_fds"));
  EXPECT_GE(Value(metrics, "process_cpu_seconds_total"), 0);
}

}  // namespace
}  // namespace flotilla
