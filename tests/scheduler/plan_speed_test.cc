// The time of a plan does not grow with the cached prefixes of requests that wait. Plans of two
// cores are timed in turns, each by its shortest, so that a busy machine slows both. A comparison
// that fails is tried again before it counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
constexpr bool kTimed = false;
#else
constexpr bool kTimed = true;
#endif

ExecutorDescription Group(std::uint32_t blocks) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.max_context = 200'000;
  group.block_count = blocks + 1;
  return group;
}

// A core in which one request decodes, and five requests wait for blocks. `cached` tokens of each
// are in the prefix cache.
class Waiting {
 public:
  Waiting(std::uint32_t cached, const char* policy)
      : harness_({.max_queued_tokens = 1u << 30}, Group(cached / 16 + 200), policy) {
    harness_.core.Submit(0, CoreHarness::Request(1, cached, 2));
    harness_.RunAll();
    harness_.Submit(2, 16, 2000);
    for (int plan = 0; plan < 2; ++plan) Step();
    for (std::uint64_t k = 0; k < 5; ++k) {
      TokenizedRequest request = CoreHarness::Request(1, cached, 3100);
      request.id.counter = 100 + k;
      request.deadline_ns = std::int64_t{1} << 60;
      for (std::uint64_t i = 0; i < 32; ++i) {
        request.prompt.push_back(static_cast<TokenId>(k * 40 + i));
      }
      harness_.core.Submit(0, request);
    }
    EXPECT_EQ(harness_.core.Snapshot().load.waiting_requests, 5u);
  }

  // Makes and answers a plan. Returns how long it took to make.
  std::int64_t Step() {
    const Clock::time_point start = Clock::now();
    PlanOutcome outcome = harness_.core.Plan(0);
    const Clock::duration took = Clock::now() - start;
    if (!outcome.plan.has_value()) return std::numeric_limits<std::int64_t>::max();
    harness_.plans.push_back(*std::move(outcome.plan));
    harness_.Answer();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  }

 private:
  CoreHarness harness_;
};

class PlanSpeed : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(, PlanSpeed, ::testing::Values("priority", "edf"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(PlanSpeed, APlanCostsTheSameWhetherWaitingPrefixesAreShortOrLong) {
  if (!kTimed) GTEST_SKIP() << "timing means something in plain release builds only";
  double ratio = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    Waiting few(1'000, GetParam()), many(64'000, GetParam());
    std::int64_t least_few = std::numeric_limits<std::int64_t>::max(), least_many = least_few;
    for (int plan = 0; plan < 200; ++plan) {
      least_few = std::min(least_few, few.Step());
      least_many = std::min(least_many, many.Step());
    }
    ratio = static_cast<double>(least_many) / static_cast<double>(least_few);
    if (ratio <= 1.5) break;
  }
  RecordProperty("ratio", std::to_string(ratio));
  EXPECT_LE(ratio, 1.5);
}

}  // namespace
}  // namespace flotilla::scheduler
