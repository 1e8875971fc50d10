// A benchmark counts only rows that the model has computed. A prefill that a cache made free is an
// error, not a figure. The test uses a tiny model.
#include "tests/support/throughput.h"

#include <set>

#include <gtest/gtest.h>

#include "tests/support/tiny_gguf.h"

namespace flotilla::testing {
namespace {

class ThroughputTest : public ::testing::Test {
 protected:
  ThroughputTest() : bytes_(TinyGguf()) {
    auto parsed = model::ParseCheckpoint(bytes_);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    file_ = *std::move(parsed);
  }

  const std::vector<std::byte> bytes_;
  std::shared_ptr<const model::Checkpoint> file_;
};

// Makes eight prompts of 128 tokens. They do not depend on the ids.
std::vector<TokenizedRequest> SamePrompts(std::uint64_t first_id) {
  std::vector<TokenizedRequest> requests(8);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].id = {1, first_id + i};
    for (std::size_t t = 0; t < 128; ++t) {
      requests[i].prompt.push_back(static_cast<TokenId>((i * 131 + t * 17) % 320));
    }
    requests[i].sampling.temperature = 0;
    requests[i].stop.max_tokens = 1;
  }
  return requests;
}

TEST_F(ThroughputTest, EveryRowThatIsClaimedIsComputed) {
  ThroughputMeter meter(file_, {});
  for (const int batch : {1, 8, 32, 1, 8, 32}) {
    const ThroughputLoad load{.batch = batch, .decode_tokens = 8};
    const absl::StatusOr<Throughput> one = meter.Measure(load);
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(one->prefill_rows, 128u * batch);
    EXPECT_EQ(one->decode_rows, 8u * batch);
    EXPECT_GT(one->prefill_seconds, 0);
    EXPECT_GT(one->seconds, 0);
  }
}

TEST_F(ThroughputTest, NoPromptBeginsLikeAnother) {
  ThroughputMeter meter(file_, {});
  std::set<std::vector<TokenId>> beginnings;
  for (int run = 0; run < 20; ++run) {
    for (const TokenizedRequest& request : meter.Requests({.batch = 64}, 1)) {
      ASSERT_EQ(request.prompt.size(), 128u);
      beginnings.insert({request.prompt.begin(), request.prompt.begin() + 2});
    }
  }
  EXPECT_EQ(beginnings.size(), 20u * 64);
}

// This is the mistake that the meter must find. With its prefix cache, an engine computes only 16
// of the 128 rows of a prompt that it has seen.
TEST_F(ThroughputTest, PromptsThatTheCacheHasAreNoMeasurement) {
  EngineRunner runner(file_, {});
  ASSERT_TRUE(TimeRun(runner, SamePrompts(0)).ok());
  const absl::StatusOr<double> again = TimeRun(runner, SamePrompts(8));
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition) << again.status();
  EXPECT_EQ(again.status().message(),
            "the model computed 128 of 1024 prompt rows and 0 of 0 decode rows");
}

// Without the prefix cache the engine computes all rows.
TEST_F(ThroughputTest, TheSamePromptsWithoutACacheAreOne) {
  EngineRunner::Options options;
  options.core.prefix_cache = false;
  EngineRunner runner(file_, options);
  ASSERT_TRUE(TimeRun(runner, SamePrompts(0)).ok());
  EXPECT_TRUE(TimeRun(runner, SamePrompts(8)).ok());
}

}  // namespace
}  // namespace flotilla::testing
