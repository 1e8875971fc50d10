#include "scheduler/server/metrics.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace flotilla::scheduler {
namespace {

using ::testing::HasSubstr;

struct Scheduler {
  Metrics registry{Metrics::Labels{{"model", "m"}}};
  SchedulerProbe probe;
  testing::ManualClock clock;
  SchedulerMetrics metrics{registry, &probe, &clock};
};

StepResult AnswerOf(std::uint32_t rows, std::uint32_t decode_rows,
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

TEST(SchedulerMetricsTest, StepsAreSortedByWhatTheyDid) {
  Scheduler scheduler;
  scheduler.metrics.OnStep(AnswerOf(8, 8, {1, 2}), 16);
  scheduler.metrics.OnStep(AnswerOf(8, 0, {8}), 16);
  scheduler.metrics.OnStep(AnswerOf(8, 3, {8, 24}), 16);
  scheduler.metrics.OnStep(AnswerOf(0, 0, {}), 16);  // nothing was computed: not a step
  const std::string page = scheduler.registry.Render();
  for (const char* phase : {"decode", "prefill", "mixed"}) {
    EXPECT_THAT(page, HasSubstr(std::string("flotilla_scheduler_step_duration_seconds_count{"
                                            "model=\"m\",phase=\"") +
                                phase + "\"} 1"));
  }
  EXPECT_THAT(page, HasSubstr("flotilla_scheduler_batch_size_sum{model=\"m\"} 5"));
  // 8 + 24 tokens in 16 + 32 slots.
  EXPECT_THAT(page, HasSubstr("flotilla_kv_waste_ratio{model=\"m\"} 0.3333"));
}

TEST(SchedulerMetricsTest, TheSchedulerIsReadAtEachScrape) {
  Scheduler scheduler;
  CoreSnapshot core;
  core.load.blocks_total = 10;
  core.load.blocks_used = 4;
  core.blocks_cached = 1;
  PreemptionTotals& computed =
      core.counters.preempted[static_cast<std::size_t>(PreemptionReason::kRecomputed)];
  core.counters.replays = 2;
  computed = {.count = 7, .decoding = 5, .blocks = 12, .cost_ns = 250'000'000};
  scheduler.probe.OnState(0, core);
  std::string page = scheduler.registry.Render();
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
  scheduler.probe.OnState(0, core);
  page = scheduler.registry.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_kv_blocks{model=\"m\",state=\"used\"} 0"));
  EXPECT_THAT(page, HasSubstr(preemptions + ",victim=\"prefill\"} 3"));
}

TEST(SchedulerMetricsTest, AStepThatDoesNotComeAges) {
  Scheduler scheduler;
  const auto expect_age = [&scheduler](const std::string& seconds) {
    EXPECT_THAT(scheduler.registry.Render(),
                HasSubstr("flotilla_scheduler_step_age_seconds{model=\"m\"} " + seconds + "\n"));
  };
  CoreSnapshot core;
  scheduler.clock.AdvanceNs(5'000'000'000);
  scheduler.probe.OnState(scheduler.clock.NowNs(), core);
  expect_age("0");

  core.in_flight = 1;  // a plan was sent
  scheduler.probe.OnState(scheduler.clock.NowNs(), core);
  scheduler.clock.AdvanceNs(2'000'000'000);
  core.in_flight = 2;  // and another: the first is still the one that is waited for
  scheduler.probe.OnState(scheduler.clock.NowNs(), core);
  expect_age("2");

  scheduler.probe.OnStepDone(scheduler.clock.NowNs(), StepTimings{});
  core.in_flight = 1;
  scheduler.probe.OnState(scheduler.clock.NowNs(), core);
  expect_age("0");
  scheduler.clock.AdvanceNs(1'500'000'000);
  expect_age("1.5");

  scheduler.probe.OnStepDone(scheduler.clock.NowNs(), StepTimings{});
  core.in_flight = 0;
  scheduler.probe.OnState(scheduler.clock.NowNs(), core);
  scheduler.clock.AdvanceNs(60'000'000'000);
  expect_age("0");  // idle is not late
}

}  // namespace
}  // namespace flotilla::scheduler
