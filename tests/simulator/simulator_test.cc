#include "simulator/simulator.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/report.h"
#include "simulator/summary.h"

namespace flotilla::simulator {
namespace {

using ::testing::HasSubstr;

// 10 ms a step, 1 ms a prompt row, 2 ms a decode row.
Machine SlowMachine() {
  Machine machine;
  machine.name = "slow";
  machine.cost = LinearModel{.step_ns = 10e6, .prefill_row_ns = 1e6, .decode_row_ns = 2e6};
  machine.kv_tokens = 4096;
  machine.max_context = 2048;
  machine.max_seqs = 8;
  machine.max_step_tokens = 64;
  return machine;
}

Workload OneRequest(std::uint32_t prompt, std::uint32_t output) {
  Workload w;
  w.requests.push_back({.arrival_ns = 5'000'000, .prompt_tokens = prompt, .output_tokens = output});
  return w;
}

SimulationOptions OptionsFor(const Machine& machine) {
  SimulationOptions options;
  options.core = DefaultOptions(machine);
  options.check_invariants = true;
  return options;
}

// Requests of 900 positions, of which a window of 100 keeps at most 100 positions, the rows of a
// plan and the rest of two blocks.
TEST(SimulatorTest, WindowsKeepLessMemory) {
  Machine machine = SlowMachine();
  machine.kv_tokens = 2048;  // two requests
  Workload workload;
  for (std::int64_t i = 0; i < 16; ++i) {
    workload.requests.push_back({.arrival_ns = i, .prompt_tokens = 800, .output_tokens = 100});
  }
  SimulationOptions options = OptionsFor(machine);
  options.lengths_known = true;
  const auto whole = Simulate(machine, workload, options);
  machine.kv_windows = {0, 100, 100, 100};
  const auto windows = Simulate(machine, workload, options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ(windows->memory.pool, whole->memory.pool);
  EXPECT_LE(windows->memory.peak_used, windows->memory.pool);
  EXPECT_EQ(whole->load.peak_running, 2u);
  EXPECT_GE(windows->load.peak_running, 4u);
  EXPECT_LT(windows->end_ns, whole->end_ns);
  EXPECT_LT(windows->memory.wasted, windows->memory.used);
}

TEST(SimulatorTest, OneRequestTakesWhatItsStepsTake) {
  const Machine machine = SlowMachine();
  const auto record = Simulate(machine, OneRequest(20, 4), OptionsFor(machine));
  ASSERT_TRUE(record.ok()) << record.status();
  const RequestRecord& r = record->requests[0];
  EXPECT_EQ(r.outcome, RequestOutcome::kFinished);
  EXPECT_EQ(r.output_tokens, 4u);
  EXPECT_EQ(r.arrival_ns, 5'000'000);
  EXPECT_EQ(r.first_token_ns, 5'000'000 + 30'000'000);                  // 10 + 20 * 1 ms
  EXPECT_EQ(r.last_token_ns, 5'000'000 + 30'000'000 + 3 * 12'000'000);  // 10 + 2 ms
  EXPECT_THAT(record->gaps_us, ::testing::Each(12'000u));
  EXPECT_EQ(record->gaps_us.size(), 3u);
}

TEST(SimulatorTest, ALongPromptIsCutIntoSteps) {
  const Machine machine = SlowMachine();  // 64 rows a step
  const auto record = Simulate(machine, OneRequest(100, 1), OptionsFor(machine));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->requests[0].first_token_ns, 5'000'000 + 74'000'000 + 46'000'000);
}

TEST(SimulatorTest, TheRoundTripIsPaidWhereThePipelineCannotHideIt) {
  const Machine machine = SlowMachine();
  SimulationOptions options = OptionsFor(machine);
  options.round_trip_ns = 3'000'000;
  const auto record = Simulate(machine, OneRequest(20, 4), options);
  ASSERT_TRUE(record.ok()) << record.status();
  // There and back once; the next plan is there before a step ends.
  EXPECT_EQ(record->requests[0].first_token_ns, 5'000'000 + 33'000'000);
  EXPECT_EQ(record->requests[0].last_token_ns, 5'000'000 + 33'000'000 + 3 * 12'000'000);
  // Longer than a step: two plans at most are under way, so two steps take a trip.
  options.round_trip_ns = 100'000'000;
  const auto far = Simulate(machine, OneRequest(20, 4), options);
  ASSERT_TRUE(far.ok()) << far.status();
  EXPECT_GT(far->requests[0].last_token_ns, 5'000'000 + 2 * 100'000'000);
}

Workload Synthetic(std::uint32_t requests, double rate, std::uint64_t seed) {
  SyntheticOptions o = FindPreset("short").value();
  o.requests = requests;
  o.rate = rate;
  o.seed = seed;
  o.tenants = 3;
  o.prefix_groups = seed % 2 == 0 ? 4 : 0;
  o.prefix_tokens = 50;
  return MakeWorkload(o).value();
}

// Scheduler and worker run to the end under every combination of what makes their
// lives hard; Simulate proves at the end that nothing is left.
TEST(SimulatorTest, InvariantsHoldUnderPressure) {
  std::uint64_t preemptions = 0, cached = 0, expired = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    Machine machine = SlowMachine();
    machine.lag = 1 + seed % 3;
    machine.kv_tokens = seed % 4 == 0 ? 1200 : 4096;  // one request, or a few
    if (seed % 6 < 2) machine.kv_windows = {40, 0, 40};
    Workload workload = Synthetic(60, 20, seed);
    for (std::size_t i = 0; i < workload.requests.size() && seed % 5 == 0; i += 3) {
      workload.requests[i].deadline_ns = 2'000'000'000;
    }
    SimulationOptions options = OptionsFor(machine);
    options.round_trip_ns = seed % 2 == 0 ? 0 : 4'000'000;
    options.lengths_known = seed % 3 == 0;
    options.core.prefix_cache = seed % 7 != 0;
    if (seed % 4 == 0) {  // no room is kept, so there are preemptions
      options.core.expected_output_permille = 0;
      options.core.watermark_blocks = 0;
    }
    const auto record = Simulate(machine, workload, options);
    ASSERT_TRUE(record.ok()) << record.status();
    for (std::size_t i = 0; i < workload.requests.size(); ++i) {
      const RequestRecord& r = record->requests[i];
      EXPECT_GE(r.arrival_ns, workload.requests[i].arrival_ns);
      if (r.outcome == RequestOutcome::kDeadline) {
        ++expired;
        continue;
      }
      ASSERT_EQ(r.outcome, RequestOutcome::kFinished) << "request " << i;
      EXPECT_EQ(r.output_tokens, workload.requests[i].output_tokens);
      EXPECT_GT(r.first_token_ns, r.arrival_ns);
      EXPECT_LE(r.last_token_ns, record->end_ns);
    }
    EXPECT_LE(record->memory.peak_used, record->memory.pool);
    EXPECT_LE(record->memory.wasted, record->memory.used);
    preemptions += record->core.preemptions;
    cached += record->core.cached_tokens;
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(cached, 0u);
  EXPECT_GT(expired, 0u);
}

TEST(SimulatorTest, TheSameSeedGivesTheSameBytes) {
  const Machine machine = SlowMachine();
  const auto json = [&](std::uint64_t seed) {
    const Workload workload = Synthetic(80, 30, seed);
    const auto record = Simulate(machine, workload, OptionsFor(machine));
    EXPECT_TRUE(record.ok()) << record.status();
    return ReportJson({Summarize(workload, *record, {})}) + RequestsCsv(workload, *record);
  };
  EXPECT_EQ(json(3), json(3));
  EXPECT_NE(json(3), json(4));
}

TEST(SimulatorTest, AClosedLoopKeepsItsConcurrency) {
  Machine machine = SlowMachine();
  machine.max_seqs = 4;
  SyntheticOptions o = FindPreset("short").value();
  o.requests = 50;
  o.arrivals = SyntheticOptions::Arrivals::kClosed;
  o.concurrency = 6;
  const Workload workload = MakeWorkload(o).value();
  const auto record = Simulate(machine, workload, OptionsFor(machine));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->load.peak_running, 4u);
  EXPECT_EQ(record->load.peak_waiting, 2u);
  std::vector<std::pair<std::int64_t, int>> changes;
  for (const RequestRecord& r : record->requests) {
    EXPECT_EQ(r.outcome, RequestOutcome::kFinished);
    changes.emplace_back(r.arrival_ns, 1);
    changes.emplace_back(r.last_token_ns, -1);
  }
  std::sort(changes.begin(), changes.end());
  int alive = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, alive += change);
  EXPECT_EQ(most, 6);
}

// Each user thinks between two requests, and finds its chat in the prefix cache.
TEST(SimulatorTest, UsersChatAndThink) {
  const Machine machine = SlowMachine();
  SyntheticOptions o = FindPreset("short").value();
  o.requests = 60;
  o.arrivals = SyntheticOptions::Arrivals::kClosed;
  o.concurrency = 5;
  o.turns = 4;
  o.think_ns = 300'000'000;
  const Workload workload = MakeWorkload(o).value();
  const auto record = Simulate(machine, workload, OptionsFor(machine));
  ASSERT_TRUE(record.ok()) << record.status();
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const RequestRecord& r = record->requests[i];
    const SimulatedRequest& w = workload.requests[i];
    ASSERT_EQ(r.outcome, RequestOutcome::kFinished);
    const std::int64_t last = i < 5 ? 0 : record->requests[i - 5].last_token_ns;
    EXPECT_EQ(r.arrival_ns, last + w.think_ns) << i;
    if (w.history_tokens > 0) {
      EXPECT_GE(r.cached_tokens + 32, w.history_tokens) << i;
    }
  }
}

TEST(SimulatorTest, AFullQueueRefuses) {
  const Machine machine = SlowMachine();
  SimulationOptions options = OptionsFor(machine);
  options.core.max_queued_requests = 2;
  const Workload workload = Synthetic(100, 1000, 1);
  const auto record = Simulate(machine, workload, options);
  ASSERT_TRUE(record.ok()) << record.status();
  const Summary s = Summarize(workload, *record, {});
  EXPECT_GT(s.refused, 20);
  EXPECT_GT(s.finished, 4);
  EXPECT_EQ(s.refused + s.finished, 100);
}

TEST(SimulatorTest, MaxTokensCutsAnswers) {
  const Machine machine = SlowMachine();
  SimulationOptions options = OptionsFor(machine);
  options.max_tokens = 3;
  const auto record = Simulate(machine, OneRequest(20, 40), options);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->requests[0].output_tokens, 3u);
}

TEST(SimulatorTest, ItStopsWhenAskedTo) {
  const Machine machine = SlowMachine();
  SimulationOptions options = OptionsFor(machine);
  int calls = 0;
  options.progress_events = 1;
  options.progress = [&calls](const SimulationProgress&) { return ++calls < 5; };
  EXPECT_EQ(Simulate(machine, Synthetic(50, 10, 1), options).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 5);
}

TEST(SimulatorTest, UnknownPoliciesAndUselessMachinesAreRefused) {
  SimulationOptions options = OptionsFor(SlowMachine());
  options.policy = "random";
  EXPECT_THAT(Simulate(SlowMachine(), OneRequest(1, 1), options).status().message(),
              HasSubstr("no policy named \"random\"; there are priority"));
  Machine machine = SlowMachine();
  machine.lag = 1000;
  EXPECT_EQ(Simulate(machine, OneRequest(1, 1), OptionsFor(machine)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SimulatorTest, SeveralAnswersAndBeamsShareTheirPrompt) {
  const Machine machine = SlowMachine();
  Workload workload = OneRequest(40, 6);
  workload.requests[0].sequences = 3;
  workload.requests.push_back({.arrival_ns = 5'000'000,
                               .prompt_tokens = 33,
                               .output_tokens = 5,
                               .sequences = 2,
                               .beams = 4});
  SimulationOptions options = OptionsFor(machine);
  options.max_tokens = 64;  // four beams of more would not fit the pool
  const auto record = Simulate(machine, workload, options);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->requests[0].outcome, RequestOutcome::kFinished);
  EXPECT_EQ(record->requests[0].output_tokens, 18u);
  EXPECT_EQ(record->requests[1].outcome, RequestOutcome::kFinished);
  EXPECT_GE(record->requests[1].output_tokens, 2u);
  EXPECT_GT(record->core.forks, 0u);
}

TEST(SimulatorTest, StagesOverlapSteps) {
  Machine machine = SlowMachine();
  const Workload workload = Synthetic(60, 1000, 1);
  const auto one = Simulate(machine, workload, OptionsFor(machine));
  machine.lag = 3;
  const auto three = Simulate(machine, workload, OptionsFor(machine));
  ASSERT_TRUE(one.ok() && three.ok());
  EXPECT_LT(three->end_ns, one->end_ns);
}

}  // namespace
}  // namespace flotilla::simulator
