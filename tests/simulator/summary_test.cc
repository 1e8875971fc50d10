#include "simulator/summary.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/report.h"
#include "simulator/timeline.h"

namespace flotilla::simulator {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SummaryTest, PercentilesAreNearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = PercentilesOf(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.worst, 100);
  EXPECT_EQ(p.mean, 50.5);
  std::vector<double> one = {7};
  EXPECT_EQ(PercentilesOf(one).p50, 7);
  EXPECT_EQ(PercentilesOf(one).p99, 7);
  std::vector<double> none;
  EXPECT_EQ(PercentilesOf(none).p99, 0);
}

TEST(SummaryTest, JainsIndex) {
  EXPECT_EQ(JainIndex({5, 5, 5}), 1);
  EXPECT_DOUBLE_EQ(JainIndex({9, 0, 0}), 1.0 / 3);
  EXPECT_DOUBLE_EQ(JainIndex({1, 2}), 9.0 / 10);
  EXPECT_EQ(JainIndex({}), 1);
  EXPECT_EQ(JainIndex({0, 0}), 1);
}

TEST(TimelineTest, CountsAndMeansPerBucket) {
  Timeline counts, level;
  counts.Count(0, 1);
  counts.Count(999'999, 2);
  counts.Count(1'000'000, 4);
  EXPECT_THAT(counts.PerSecond(1'500'000), ElementsAre(DoubleEq(3000), DoubleEq(8000)));
  level.Hold(500'000, 1'250'000, 8);
  EXPECT_THAT(level.PerSecond(1'500'000), ElementsAre(DoubleEq(4), DoubleEq(4)));
}

TEST(TimelineTest, LongRunsKeepTheirTotals) {
  Timeline counts, level;
  for (std::int64_t ms = 0; ms < 5000; ++ms) counts.Count(ms * 1'000'000, 1);
  level.Hold(0, 5'000'000'000, 3);
  EXPECT_EQ(counts.bucket_ns(), 16'000'000);
  const std::vector<double> rates = counts.PerSecond(5'000'000'000);
  EXPECT_EQ(rates.size(), 313u);
  for (const double rate : rates) EXPECT_NEAR(rate, 1000, 1e-6);
  for (const double value : level.PerSecond(5'000'000'000)) EXPECT_NEAR(value, 3, 1e-9);
}

// There are two tenants and four requests: a good one, one that starts too late, one with too long
// gaps, and one that is refused.
struct Example {
  Workload workload;
  RunRecord record;
};
Example MakeExample() {
  Example e;
  e.workload.tenants = {"a", "b,\x1b"};
  e.workload.requests.resize(4, {.prompt_tokens = 10, .output_tokens = 3});
  e.workload.requests[3].tenant = 1;
  constexpr std::int64_t kMs = 1'000'000;
  const auto served = [&](std::int64_t arrival, std::int64_t first, std::int64_t last) {
    return RequestRecord{.arrival_ns = arrival * kMs,
                         .first_token_ns = first * kMs,
                         .last_token_ns = last * kMs,
                         .output_tokens = 3,
                         .outcome = RequestOutcome::kFinished};
  };
  e.record.requests = {served(1000, 1100, 1300),
                       served(1000, 2500, 2600),
                       served(1000, 1100, 1900),
                       {.arrival_ns = 1000 * kMs, .outcome = RequestOutcome::kRefused}};
  e.record.gaps_us = {100'000, 100'000, 50'000, 50'000, 400'000, 400'000};
  e.record.contended_tokens = {30, 10};
  e.record.end_ns = 3000 * kMs;
  e.record.memory = {.used = 4e9, .wasted = 1e9, .peak_used = 8, .pool = 10};
  e.record.load = {.running = 6e9, .peak_running = 3};
  return e;
}

TEST(SummaryTest, FiguresFollowTheirDefinitions) {
  const Example e = MakeExample();
  const Summary s = Summarize(e.workload, e.record, {.ttft_ms = 1000, .itl_ms = 100});
  EXPECT_EQ(s.requests, 4);
  EXPECT_EQ(s.finished, 3);
  EXPECT_EQ(s.refused, 1);
  EXPECT_DOUBLE_EQ(s.seconds, 2);
  EXPECT_DOUBLE_EQ(s.output_tokens_per_s, 4.5);
  EXPECT_DOUBLE_EQ(s.prompt_tokens_per_s, 15);
  EXPECT_DOUBLE_EQ(s.goodput_per_s, 0.5);
  EXPECT_DOUBLE_EQ(s.good_share, 0.25);
  EXPECT_DOUBLE_EQ(s.ttft_ms.p50, 100);
  EXPECT_DOUBLE_EQ(s.ttft_ms.worst, 1500);
  EXPECT_DOUBLE_EQ(s.itl_ms.worst, 400);
  EXPECT_DOUBLE_EQ(s.latency_ms.worst, 1600);
  EXPECT_DOUBLE_EQ(s.token_latency_ms.p50, 300);
  EXPECT_DOUBLE_EQ(s.mean_running, 3);
  EXPECT_DOUBLE_EQ(s.mean_memory, 0.2);
  EXPECT_DOUBLE_EQ(s.peak_memory, 0.8);
  EXPECT_DOUBLE_EQ(s.wasted_memory, 0.25);
  EXPECT_DOUBLE_EQ(s.fairness, 0.8);
  EXPECT_EQ(s.tenants[0].finished, 3u);
  EXPECT_EQ(s.tenants[1].contended_tokens, 10u);
}

TEST(SummaryTest, TheMiddleHalfLeavesOutHowARunEnds) {
  Workload workload;
  RunRecord record;
  for (int i = 0; i <= 8; ++i) {  // one request a second, and the last one much later
    workload.requests.push_back({});
    record.requests.push_back({.first_token_ns = 1,
                               .last_token_ns = (i < 8 ? i : 1000) * std::int64_t{1'000'000'000},
                               .output_tokens = 1,
                               .outcome = RequestOutcome::kFinished});
  }
  record.contended_tokens = {0};
  record.end_ns = 1'000'000'000'000;
  const Summary s = Summarize(workload, record, {});
  EXPECT_DOUBLE_EQ(s.steady_requests_per_s, 1);
  EXPECT_LT(s.requests_per_s, 0.01);
}

TEST(SummaryTest, RequestsAreSummedUpByClass) {
  Example e = MakeExample();
  e.workload.requests[0].prompt_tokens = kShortPrompt;
  e.workload.requests[1].prompt_tokens = kShortPrompt + 1;
  e.workload.requests[2].prompt_tokens = kMediumPrompt + 1;
  e.workload.requests[1].priority = 5;
  const Summary s = Summarize(e.workload, e.record, {});
  ASSERT_EQ(s.by_prompt.size(), 3u);
  EXPECT_EQ(s.by_prompt[0].requests, 2u);  // one of them was refused and has no first token
  EXPECT_EQ(s.by_prompt[0].ttft_ms.worst, 100);
  EXPECT_EQ(s.by_prompt[1].ttft_ms.p50, 1500);
  EXPECT_EQ(s.by_prompt[2].ttft_ms.p50, 100);
  ASSERT_EQ(s.by_priority.size(), 2u);
  EXPECT_EQ(s.by_priority[0].name, "priority 5");
  EXPECT_EQ(s.by_priority[0].ttft_ms.p50, 1500);
  EXPECT_EQ(s.by_priority[1].requests, 3u);
  ASSERT_EQ(s.by_tenant.size(), 2u);
  EXPECT_EQ(s.by_tenant[0].ttft_ms.worst, 1500);
  EXPECT_EQ(s.by_tenant[1].requests, 1u);
}

TEST(ReportTest, TableJsonAndCsvSayTheSame) {
  const Example e = MakeExample();
  Summary s = Summarize(e.workload, e.record, {});
  s.label = "run";
  const std::string table = ReportTable({s, s});
  EXPECT_THAT(table, HasSubstr("output tokens/s"));
  EXPECT_THAT(table, HasSubstr("4.5"));
  EXPECT_THAT(table, HasSubstr("tenant"));
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  EXPECT_THAT(table, Not(HasSubstr("preemptions")));  // there were none
  const auto json = nlohmann::json::parse(ReportJson({s}));
  EXPECT_EQ(json["runs"][0]["output_tokens_per_s"], 4.5);
  EXPECT_EQ(json["runs"][0]["preemptions"], 0);
  EXPECT_EQ(json["runs"][0]["tenants"][1]["contended_tokens"], 10);
  std::istringstream csv(ReportCsv({s, s}));
  std::string head, row;
  std::getline(csv, head);
  std::getline(csv, row);
  EXPECT_EQ(std::count(head.begin(), head.end(), ','), std::count(row.begin(), row.end(), ','));
  EXPECT_THAT(row, HasSubstr("run,4,3,1,"));
  EXPECT_THAT(RequestsCsv(e.workload, e.record), HasSubstr("b??,refused\n"));
}

TEST(ReportTest, ManyRunsAreLines) {
  const Example e = MakeExample();
  std::vector<Summary> runs(7, Summarize(e.workload, e.record, {}));
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].label = "run" + std::to_string(i);
  const std::string table = ReportTable(runs);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 8);
  EXPECT_THAT(table, HasSubstr("\nrun6 "));
  EXPECT_THAT(table, HasSubstr("out tok/s"));
}

}  // namespace
}  // namespace flotilla::simulator
