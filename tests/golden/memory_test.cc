// Tests the KV pool on the real model, at the Engine seam. Little of the pool is wasted, and the
// sequences of a request share all blocks that they can. With a quarter of the blocks that a load
// would use, it is nearly as fast by the clock. The tests use a few requests; scripts/bench_memory
// has the whole load and the required figures.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/memory_load.h"

namespace flotilla::testing {
namespace {

// Selects the cases for which a few requests are enough.
bool Wanted(const MemoryCase& one) {
  return one.width == 1 || (one.width == 4 && one.preset == std::string("short"));
}

void ExpectWellUsed(const MemoryCase& one, const MemoryRun& run, std::uint32_t requests) {
  SCOPED_TRACE(one.Name());
  EXPECT_EQ(run.use.mismatches, 0u);
  EXPECT_EQ(run.preemptions, 0u);
  EXPECT_LT(run.use.worst_waste, 16u);
  if (testing::kSanitized) return;
  if (one.width == 1) {
    EXPECT_EQ(run.use.saving(), 0);
    if (std::string(one.preset) == "long") {
      EXPECT_LT(run.use.waste(), testing::kMostWaste);
    }
  } else if (!one.beams) {
    // Nothing is shared while the prompt is computed.
    EXPECT_NEAR(run.use.saving(), PossibleSaving(one, requests), 0.02);
  }
  if (one.beams) {
    // The first few requests are shorter than the preset's mean, so they have less to share. Also,
    // the steps of beams alternate or coincide, depending on when they started.
    EXPECT_GE(run.use.saving(), one.required_saving - 0.08);
  }
}

TEST(MemoryTest, LittleIsWastedAndMuchShared) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  const std::uint32_t requests = testing::kSanitized ? 2 : 8;
  for (const std::string preset : {"short", "long"}) {
    testing::MemoryLoad load(file, testing::MemoryPool(preset));
    for (const MemoryCase& one : testing::kMemoryCases) {
      if (one.preset != preset || !Wanted(one)) continue;
      const MemoryRun run = load.Run(MakeMemoryRequests(one, requests));
      ExpectWellUsed(one, run, requests);
      RecordProperty(
          absl::StrCat(one.Name(), ": waste; saving"),
          absl::StrFormat("%.2f %%; %.1f %%", 100 * run.use.waste(), 100 * run.use.saving()));
    }
  }
}

// More blocks than any load here holds.
constexpr std::uint32_t kAmple = 4096;

// An engine whose pool has `blocks` blocks and the given tiers. It keeps what it has measured.
class Pool {
 public:
  Pool(std::shared_ptr<const model::Checkpoint> file, std::uint32_t blocks,
       const worker::TierOptions& tiers = {}, std::shared_ptr<Turns> turns = nullptr) {
    EngineRunner::Options options;
    options.turns = std::move(turns);
    options.rank.kv_blocks = blocks;
    options.rank.tiers = tiers;
    options.on_preemption = [this](const scheduler::Preemption& one) {
      preemptions_.push_back(one);
    };
    options.on_planned = [this](const scheduler::SchedulerCore& core) { meter_.Sample(core); };
    runner_ = std::make_unique<EngineRunner>(std::move(file), std::move(options));
  }

  std::vector<Answer> Run(const std::vector<TokenizedRequest>& requests) {
    std::vector<Answer> answers = runner_->Run(requests);
    peak_blocks_ = meter_.Take().peak_blocks;
    return answers;
  }

  std::uint32_t peak_blocks() const { return peak_blocks_; }  // in the last run
  // The counters of all runs together.
  scheduler::CoreCounters counters() const {
    return runner_->engine().probe().Read().core.counters;
  }
  const std::vector<scheduler::Preemption>& preemptions() const { return preemptions_; }

 private:
  MemoryMeter meter_;
  std::uint32_t peak_blocks_ = 0;
  std::vector<scheduler::Preemption>
      preemptions_;  // written by the engine's thread, and read between runs
  std::unique_ptr<EngineRunner> runner_;
};

void ExpectSameAnswers(const std::vector<Answer>& expected, const std::vector<Answer>& answers) {
  for (std::size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status;
    EXPECT_EQ(answers[i].Bits(), expected[i].Bits()) << "request " << i;
    EXPECT_LE(answers[i].usage.preemptions, 3u) << "request " << i;
  }
}

// The results of one load in both pools.
struct Comparison {
  std::uint32_t blocks = 0;  // the most that it holds at a time
  // From the first plan to the last answer by the clock, waits between steps included.
  double seconds = 0, quarter_seconds = 0;
  double ratio() const { return seconds / quarter_seconds; }  // of throughput
  scheduler::CoreCounters ample, quarter;
  std::vector<scheduler::Preemption> preemptions;
};

// Returns the most blocks that the load holds at a time when the pool is large enough.
std::uint32_t PeakBlocks(const std::shared_ptr<const model::Checkpoint>& file, const char* preset,
                         std::uint32_t count) {
  static std::map<std::pair<std::string, std::uint32_t>, std::uint32_t> known;
  std::uint32_t& blocks = known[{preset, count}];
  if (blocks > 0) return blocks;
  Pool ample(file, kAmple);
  ample.Run(testing::MakeMemoryRequests({preset, 1, false, 0}, count));
  return blocks = ample.peak_blocks();
}

// Serves the load with all the blocks that it can use and with a quarter of them. The two take
// turns, so that a slow phase of the machine slows both. Checks answers and preemptions.
Comparison ServeWithAQuarter(const char* preset, std::uint32_t count,
                             const worker::TierOptions& tiers) {
  Comparison result;
  const auto file = testing::OpenRealModel();
  if (file == nullptr) return result;
  result.blocks = PeakBlocks(file, preset, count);
  const std::vector<TokenizedRequest> requests =
      testing::MakeMemoryRequests({preset, 1, false, 0}, count);
  const auto turns = std::make_shared<Turns>();
  Pool ample(file, kAmple, {}, turns), quarter(file, result.blocks / 4, tiers, turns);
  std::vector<Answer> expected;
  std::thread beside([&] {
    expected = ample.Run(requests);
    turns->Leave(0);
  });
  const std::vector<Answer> answers = quarter.Run(requests);
  turns->Leave(1);
  beside.join();
  ExpectSameAnswers(expected, answers);
  result.seconds = 1e-9 * static_cast<double>(turns->ClockNs(0));
  result.quarter_seconds = 1e-9 * static_cast<double>(turns->ClockNs(1));
  result.ample = ample.counters();
  result.quarter = quarter.counters();
  result.preemptions = quarter.preemptions();
  return result;
}

std::uint64_t Count(const Comparison& result, scheduler::PreemptionReason reason) {
  return result.quarter.preempted[static_cast<std::size_t>(reason)].count;
}

// Checks that each victim was swapped or recomputed, whichever is cheaper by the figures of its
// record.
void ExpectReasonsHold(const Comparison& result) {
  EXPECT_EQ(result.ample.preemptions, 0u);
  EXPECT_EQ(result.quarter.resumptions, result.quarter.preemptions);
  EXPECT_EQ(result.preemptions.size(), result.quarter.preemptions);
  for (const scheduler::Preemption& one : result.preemptions) {
    SCOPED_TRACE(absl::StrCat("request ", one.victim.counter, ", ", scheduler::ModeName(one.reason),
                              ", ", scheduler::ReasonName(one.reason)));
    EXPECT_GT(one.blocks, 0u);
    switch (one.reason) {
      case scheduler::PreemptionReason::kSwapped:
        EXPECT_LT(one.swap_ns, one.recompute_ns);
        EXPECT_GT(one.swapped_blocks, 0u);
        break;
      case scheduler::PreemptionReason::kRecomputed:
        EXPECT_GE(one.swap_ns, one.recompute_ns);
        break;
      case scheduler::PreemptionReason::kNoTier:
        EXPECT_EQ(one.swap_ns, 0);
        break;
      case scheduler::PreemptionReason::kNoWholeBlock:
        EXPECT_EQ(one.swapped_blocks, 0u);
        break;
    }
  }
}

void Report(const char* what, const Comparison& result) {
  std::string why;
  for (std::size_t i = 0; i < scheduler::kPreemptionReasons; ++i) {
    const auto reason = static_cast<scheduler::PreemptionReason>(i);
    const scheduler::PreemptionTotals& totals = result.quarter.preempted[i];
    if (totals.count == 0) continue;
    absl::StrAppendFormat(&why, "%s%d %s (%s; %d blocks, %.0f ms)", why.empty() ? "" : ", ",
                          totals.count, scheduler::ModeName(reason), scheduler::ReasonName(reason),
                          totals.blocks, 1e-6 * static_cast<double>(totals.cost_ns));
  }
  const std::string line = absl::StrFormat(
      "%.2f of that with all %d (%.1f s, %.1f s); preemptions: %s; %d prompt tokens "
      "computed instead of %d, %d blocks read back",
      result.ratio(), result.blocks, result.quarter_seconds, result.seconds,
      why.empty() ? "none" : why, result.quarter.prefill_tokens, result.ample.prefill_tokens,
      result.quarter.blocks_in);
  std::printf("throughput with a quarter of the blocks, %s: %s\n", what, line.c_str());
  ::testing::Test::RecordProperty(absl::StrCat("throughput with a quarter of the blocks, ", what),
                                  line);
}

TEST(MemoryTest, AQuarterOfThePoolGivesTheSameAnswers) {
  const Comparison result = ServeWithAQuarter("short", testing::kSanitized ? 20 : 40, {});
  ASSERT_GT(result.blocks, 0u);
  ExpectReasonsHold(result);
  EXPECT_EQ(result.quarter.swapped, 0u);
  Report("no tiers", result);
}

// With a quarter of the pool the load is nearly as fast, with and without tiers. It needs 128
// requests, so that a quarter of the pool still gives batches. With 64 requests a step has about 8
// rows; reading the weights for so few rows causes most of the loss (0.84 to 0.92). A comparison
// that fails is made again before it counts.
struct Quarter {
  const char* name;
  worker::TierOptions tiers;
};
class MemoryQuarterTest : public ::testing::TestWithParam<Quarter> {};

TEST_P(MemoryQuarterTest, IsNearlyAsFast) {
  if (!LongTests()) GTEST_SKIP() << "only with FLOTILLA_LONG=1";
  const worker::TierOptions& tiers = GetParam().tiers;
  Comparison result;
  for (int attempt = 0; attempt < 3 && !(result.ratio() >= 0.85); ++attempt) {
    result = ServeWithAQuarter("long", 128, tiers);
    ASSERT_GT(result.blocks, 0u);
    ExpectReasonsHold(result);
    Report(GetParam().name, result);
  }
  EXPECT_GE(result.ratio(), 0.85);
  EXPECT_GT(result.quarter.preemptions, 0u);
  if (tiers.host_blocks == 0 && tiers.disk_blocks == 0) {
    EXPECT_EQ(Count(result, scheduler::PreemptionReason::kNoTier), result.quarter.preemptions);
  } else {
    EXPECT_GT(Count(result, scheduler::PreemptionReason::kSwapped), 0u);
    EXPECT_GT(result.quarter.blocks_in, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, MemoryQuarterTest,
                         ::testing::Values(Quarter{"NoTiers", {}},
                                           Quarter{"Host", {.host_blocks = 128}},
                                           Quarter{"Disk", {.disk_blocks = 128}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace flotilla::testing
