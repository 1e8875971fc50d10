#include "cli/top_view.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::int64_t kTopSecond = 1'000'000'000;

Look At(std::string address, std::string_view text, std::int64_t time_ns) {
  return {.address = std::move(address), .page = MetricsPage::Parse(text, time_ns)};
}

constexpr char kRouter[] =
    "flotilla_router_ready{model=\"m\"} 1\n"
    "flotilla_router_draining{model=\"m\"} 0\n"
    "flotilla_router_requests_in_flight{model=\"m\"} 3\n";
constexpr char kScheduler[] =
    "flotilla_scheduler_group_ready{model=\"m\"} 1\n"
    "flotilla_scheduler_requests_waiting{model=\"m\"} 2\n"
    "flotilla_scheduler_requests_running{model=\"m\"} 5\n"
    "flotilla_kv_blocks{state=\"total\"} 100\n"
    "flotilla_kv_blocks{state=\"used\"} 40\n";

TEST(TopViewTest, ARouter) {
  const Look before = At("a:1",
                         std::string(kRouter) +
                             "flotilla_router_requests_total 10\n"
                             "flotilla_router_rejected_total{reason=\"invalid\"} 1\n",
                         0);
  const Look now = At("a:1",
                      std::string(kRouter) +
                          "flotilla_router_requests_total 30\n"
                          "flotilla_router_rejected_total{reason=\"invalid\"} 2\n"
                          "flotilla_router_rejected_total{reason=\"queue_full\"} 3\n"
                          "flotilla_router_time_to_first_token_seconds_bucket{le=\"0.1\"} 20\n"
                          "flotilla_router_time_to_first_token_seconds_bucket{le=\"+Inf\"} 20\n",
                      2 * kTopSecond);
  const TopView view = MakeTopView({before}, {now});
  EXPECT_THAT(view.routers, ElementsAre(RouterRow{.address = "a:1",
                                                  .ready = true,
                                                  .draining = false,
                                                  .in_flight = 3,
                                                  .requests_per_s = 10,
                                                  .refused_per_s = 2,
                                                  .first_token_p50_s = 0.05,
                                                  .first_token_p99_s = 0.099,
                                                  .inter_token_p50_s = std::nullopt,
                                                  .inter_token_p99_s = std::nullopt}));
  EXPECT_THAT(view.replicas, IsEmpty());
  EXPECT_THAT(view.workers, IsEmpty());
  EXPECT_EQ(TopText(view),
            "ROUTER  STATE  IN FLIGHT  REQ/S  REFUSED/S  TTFT P50     P99  ITL P50  P99\n"
            "a:1     ready          3   10.0        2.0    50.0ms  99.0ms        -    -\n");
}

TEST(TopViewTest, AReplica) {
  const Look before = At("a:1",
                         std::string(kScheduler) +
                             "flotilla_scheduler_tokens_total{kind=\"generated\"} 0\n"
                             "flotilla_kv_prefix_lookup_tokens_total 0\n",
                         0);
  const Look now = At("a:1",
                      std::string(kScheduler) +
                          "flotilla_scheduler_tokens_total{kind=\"generated\"} 500\n"
                          "flotilla_scheduler_tokens_total{kind=\"prompt\"} 1000\n"
                          "flotilla_scheduler_batch_size_sum 90\n"
                          "flotilla_scheduler_batch_size_count 20\n"
                          "flotilla_kv_prefix_lookup_tokens_total 400\n"
                          "flotilla_kv_prefix_hit_tokens_total 100\n"
                          "flotilla_scheduler_step_age_seconds 12.5\n",
                      5 * kTopSecond);
  const TopView view = MakeTopView({before}, {now});
  EXPECT_THAT(view.replicas, ElementsAre(ReplicaRow{.address = "a:1",
                                                    .model = "m",
                                                    .ready = true,
                                                    .draining = false,
                                                    .waiting = 2,
                                                    .running = 5,
                                                    .blocks_used = 40,
                                                    .blocks_total = 100,
                                                    .step_age_s = 12.5,
                                                    .batch = 4.5,
                                                    .output_tokens_per_s = 100,
                                                    .prompt_tokens_per_s = 200,
                                                    .hit_ratio = 0.25}));
  EXPECT_THAT(TopText(view), HasSubstr("40/100  100.0     200.0   25%    12.50s      m\n"));
}

TEST(TopViewTest, AWorker) {
  const Look before = At("a:1", "flotilla_worker_steps_total 0\n", 0);
  const Look now = At("a:1",
                      "flotilla_worker_steps_total 100\n"
                      "flotilla_worker_compute_seconds_total 0.8\n"
                      "flotilla_worker_rows_total{phase=\"prefill\"} 100\n"
                      "flotilla_worker_rows_total{phase=\"decode\"} 400\n"
                      "process_cpu_seconds_total 1.5\n"
                      "process_resident_memory_bytes 104857600\n",
                      kTopSecond);
  const TopView view = MakeTopView({before}, {now});
  EXPECT_THAT(view.workers, ElementsAre(WorkerRow{.address = "a:1",
                                                  .busy = 0.8,
                                                  .steps_per_s = 100,
                                                  .tokens_per_s = 500,
                                                  .s_per_step = 0.008,
                                                  .cpu_cores = 1.5,
                                                  .resident_bytes = 104857600}));
  EXPECT_EQ(TopText(view),
            "WORKER  BUSY  STEPS/S  TOKENS/S  PER STEP  CPUS  MEMORY\n"
            "a:1      80%    100.0     500.0     8.0ms   1.5  100MiB\n");
}

TEST(TopViewTest, AWorkersRanksAreItsOwn) {
  const auto page = [](const char* cpu) {
    return absl::StrCat("flotilla_worker_steps_total 0\nprocess_cpu_seconds_total 1\n",
                        "process_resident_memory_bytes 1048576\n",
                        "flotilla_worker_rank_cpu_seconds_total{rank=\"0\"} ", cpu, "\n",
                        "flotilla_worker_rank_cpu_seconds_total{rank=\"1\"} 7.5\n",
                        "flotilla_worker_rank_resident_memory_bytes{rank=\"0\"} 2097152\n",
                        "flotilla_worker_rank_resident_memory_bytes{rank=\"1\"} 3145728\n");
  };
  const TopView view =
      MakeTopView({At("a:1", page("10"), 0)}, {At("a:1", page("14"), 2 * kTopSecond)});
  ASSERT_THAT(view.workers, SizeIs(1));
  EXPECT_EQ(view.workers[0].cpu_cores, 2);
  EXPECT_EQ(view.workers[0].resident_bytes, 6 << 20);
}

std::size_t LongestLine(const std::string& text) {
  std::size_t longest = 0;
  for (const std::string_view line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    longest = std::max(longest,
                       static_cast<std::size_t>(std::count_if(
                           line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; })));
  }
  return longest;
}

TEST(TopViewTest, LinesFitWhateverTheWidth) {
  const std::string address = "[fd00:1234:5678::aaaa:bbbb]:54321";
  const std::vector<Look> now = {
      At(address, std::string(kRouter) + kScheduler + "flotilla_worker_steps_total 0\n", 0),
      At("b:1", "flotilla_router_ready 0\nflotilla_router_requests_in_flight 123456789\n", 0),
      {.address = "c:1", .page = absl::UnavailableError(std::string(300, 'x') + "\u4e2d")}};
  const TopView view = MakeTopView({}, now);
  for (std::size_t columns = 1; columns <= 200; ++columns) {
    EXPECT_LE(LongestLine(TopText(view, columns)), columns) << columns;
  }
  // At 200 nothing is missing but the end of the last line; at 70 some columns are.
  const std::string wide = TopText(view, 200), narrow = TopText(view, 70);
  for (const char* title : {"REFUSED/S", "TTFT P50", "STEP AGE", "MODEL", "PER STEP"}) {
    EXPECT_THAT(wide, HasSubstr(title));
  }
  for (const char* title : {"STATE", "REQ/S", "OUT/S", "CPUS", "MEMORY", "MISSING  c:1: xxx"}) {
    EXPECT_THAT(narrow, HasSubstr(title));
  }
  EXPECT_THAT(narrow, Not(HasSubstr("REFUSED/S")));
  EXPECT_THAT(narrow, HasSubstr("x\u2026\n"));
  EXPECT_GT(LongestLine(TopText(view)), 300u);
}

TEST(TopViewTest, NamesCannotCommandTheTerminal) {
  const TopView view = MakeTopView(
      {}, {At("a:1", "flotilla_scheduler_group_ready{model=\"m\x1b[2J\u202e\"} 1\n", 0)});
  EXPECT_THAT(TopText(view), HasSubstr("m\\x1b[2J\\u{202e}\n"));
}

TEST(TopViewTest, OneProcessMayPlayEveryRole) {
  const Look now =
      At("a:1", std::string(kRouter) + kScheduler + "flotilla_worker_steps_total 0\n", 0);
  const TopView view = MakeTopView({}, {now});
  EXPECT_THAT(view.routers, SizeIs(1));
  EXPECT_THAT(view.replicas, SizeIs(1));
  EXPECT_THAT(view.workers, SizeIs(1));
  EXPECT_EQ(view.routers[0].requests_per_s, std::nullopt);  // one look
}

TEST(TopViewTest, WhatIsMissingIsNamed) {
  const std::vector<Look> before = {At("a:1", kRouter, 0), At("b:1", kRouter, 0)};
  const std::vector<Look> now = {{.address = "a:1", .page = absl::UnavailableError("refused")},
                                 At("b:1", kRouter, kTopSecond),
                                 At("c:1", "other_metric 1\n", 0)};
  const TopView view = MakeTopView(before, now);
  EXPECT_THAT(view.missing, ElementsAre("a:1: refused", "c:1: these are not flotilla's metrics"));
  ASSERT_THAT(view.routers, SizeIs(1));
  EXPECT_EQ(view.routers[0].address, "b:1");
  EXPECT_EQ(view.routers[0].requests_per_s, 0);
  EXPECT_THAT(TopText(view), HasSubstr("\nMISSING  a:1: refused\n"));
}

TEST(TopViewTest, WhatCannotServeIsSaidLoudly) {
  const auto state = [](const char* ready, const char* draining) {
    const std::string text = std::string("flotilla_router_ready ") + ready +
                             "\nflotilla_router_draining " + draining + "\n";
    return TopText(MakeTopView({}, {At("a:1", text, 0)}));
  };
  EXPECT_THAT(state("1", "0"), HasSubstr(" ready "));
  EXPECT_THAT(state("0", "0"), HasSubstr(" NOT READY "));
  EXPECT_THAT(state("0", "1"), HasSubstr(" draining "));
}

}  // namespace
}  // namespace flotilla::cli
