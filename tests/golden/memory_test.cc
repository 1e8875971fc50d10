// The KV pool on the real model, at the Engine seam: little of it is wasted,
// branches of a request share what they can, and a quarter of the pool that a load
// would like is nearly enough for it. With a few requests; scripts/bench_memory has
// the whole load and the figures that are required of it.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/memory_load.h"

namespace flotilla {
namespace {

using testing::Answer;
using testing::EngineRunner;
using testing::LongTests;
using testing::MemoryCase;
using testing::MemoryMeter;
using testing::MemoryRun;

// Those cases that a few requests are enough for.
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
    // The first few requests are shorter than the preset's mean: less to share. And
    // the steps of beams alternate or coincide, as they happened to start.
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

// One engine with a pool of so many blocks, and what it did.
class Pool {
 public:
  Pool(std::shared_ptr<const GgufFile> file, std::uint32_t blocks) {
    EngineRunner::Options options;
    options.rank.kv_blocks = blocks;
    options.on_planned = [this](const SchedulerCore& core) { meter_.Sample(core); };
    runner_ = std::make_unique<EngineRunner>(std::move(file), std::move(options));
  }

  std::vector<Answer> Run(const std::vector<TokenizedRequest>& requests) {
    const std::int64_t start_ns = clock_.NowNs();
    const std::clock_t start_cpu = std::clock();
    std::vector<Answer> answers = runner_->Run(requests);
    seconds_ = 1e-9 * static_cast<double>(clock_.NowNs() - start_ns);
    cpu_seconds_ = static_cast<double>(std::clock() - start_cpu) / CLOCKS_PER_SEC;
    peak_blocks_ = meter_.Take().peak_blocks;
    return answers;
  }

  double seconds() const { return seconds_; }                 // of the last run
  double cpu_seconds() const { return cpu_seconds_; }         // of all threads, in it
  std::uint32_t peak_blocks() const { return peak_blocks_; }  // in it
  CoreCounters counters() const {                             // of all runs
    return runner_->engine().probe().Read().core.counters;
  }

 private:
  const SteadyClock clock_;
  MemoryMeter meter_;
  double seconds_ = 0, cpu_seconds_ = 0;
  std::uint32_t peak_blocks_ = 0;
  std::unique_ptr<EngineRunner> runner_;
};

void ExpectSameAnswers(const std::vector<Answer>& expected, const std::vector<Answer>& answers) {
  for (std::size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status;
    EXPECT_EQ(answers[i].Bits(), expected[i].Bits()) << "request " << i;
    EXPECT_LE(answers[i].usage.preemptions, 3u) << "request " << i;
  }
}

// What one load did in both pools.
struct Comparison {
  std::uint32_t blocks = 0;  // all that it wanted
  // Of throughput with a quarter of them, by round: by time, and by CPU time, which
  // says the same without what others did on the machine.
  std::vector<double> ratios, cpu_ratios;
  CoreCounters ample, quarter;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Serves the load in turns with all the blocks that it can use and with a quarter of
// them; a busy machine slows both. Answers and preemptions are checked.
Comparison ServeWithAQuarter(const char* preset, std::uint32_t count, int rounds) {
  Comparison result;
  const auto file = testing::OpenRealModel();
  if (file == nullptr) return result;
  Pool ample(file, 4096);
  std::unique_ptr<Pool> quarter;
  std::vector<TokenizedRequest> requests =
      testing::MakeMemoryRequests({preset, 1, false, 0}, count);
  for (int round = 0; round < rounds; ++round) {
    // Nobody finds the prompts of the round before.
    for (TokenizedRequest& request : requests) request.cache_salt = absl::StrCat(round);
    const std::vector<Answer> expected = ample.Run(requests);
    if (quarter == nullptr) {
      result.blocks = ample.peak_blocks();
      quarter = std::make_unique<Pool>(file, result.blocks / 4);
    }
    ExpectSameAnswers(expected, quarter->Run(requests));
    result.ratios.push_back(ample.seconds() / quarter->seconds());
    result.cpu_ratios.push_back(ample.cpu_seconds() / quarter->cpu_seconds());
    std::printf("round %d: %.1f s with %u blocks, %.1f s with %u; CPU %.1f s, %.1f s\n", round,
                ample.seconds(), result.blocks, quarter->seconds(), result.blocks / 4,
                ample.cpu_seconds(), quarter->cpu_seconds());
    std::fflush(stdout);
  }
  result.ample = ample.counters();
  result.quarter = quarter->counters();
  return result;
}

// The one place that looks at how blocks were won back: these pools have no tiers, so
// every victim is computed again.
void ExpectPreemptions(const Comparison& result) {
  EXPECT_EQ(result.ample.preemptions, 0u);
  EXPECT_EQ(result.quarter.swapped, 0u);
  EXPECT_EQ(result.quarter.resumptions, result.quarter.preemptions);
  ::testing::Test::RecordProperty(
      "throughput with a quarter of the blocks",
      absl::StrFormat("%.2f of that with all %d (%.2f by CPU time; %d rounds); %d preemptions, %d "
                      "prompt tokens computed instead of %d",
                      Median(result.ratios), result.blocks, Median(result.cpu_ratios),
                      result.ratios.size(), result.quarter.preemptions,
                      result.quarter.prefill_tokens, result.ample.prefill_tokens));
}

TEST(MemoryTest, AQuarterOfThePoolGivesTheSameAnswers) {
  const Comparison result = ServeWithAQuarter("short", testing::kSanitized ? 12 : 40, 1);
  ASSERT_EQ(result.ratios.size(), 1u);
  ExpectPreemptions(result);
}

TEST(MemoryTest, AQuarterOfThePoolIsNearlyAsFast) {
  if (!LongTests()) GTEST_SKIP() << "only with FLOTILLA_LONG=1";
  const Comparison result = ServeWithAQuarter("long", 64, 3);
  ASSERT_EQ(result.ratios.size(), 3u);
  ExpectPreemptions(result);
  EXPECT_GE(Median(result.ratios), 0.85);
}

}  // namespace
}  // namespace flotilla
