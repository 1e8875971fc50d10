#include "loadtest/core/load_plan.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

using Arrivals = PlanOptions::Arrivals;
using ::testing::HasSubstr;

constexpr double kSecond = 1e9;

// Mean and variance of the gaps between arrivals, in units of the mean gap.
struct Gaps {
  double mean = 0, variance = 0;
};
Gaps GapsOf(const LoadPlan& plan, double rate) {
  Gaps gaps;
  const auto count = static_cast<double>(plan.requests.size() - 1);
  for (std::size_t i = 1; i < plan.requests.size(); ++i) {
    const double gap =
        rate / kSecond *
        static_cast<double>(plan.requests[i].arrival_ns - plan.requests[i - 1].arrival_ns);
    gaps.mean += gap / count;
    gaps.variance += gap * gap / count;
  }
  gaps.variance -= gaps.mean * gaps.mean;
  return gaps;
}

TEST(LoadPlanTest, ArrivalsHaveTheirRateAndTheirBurstiness) {
  struct Case {
    Arrivals arrivals;
    double variance, tolerance;
  };
  for (const auto& [arrivals, variance, tolerance] :
       {Case{Arrivals::kConstant, 0, 1e-6}, Case{Arrivals::kPoisson, 1, 0.05},
        Case{Arrivals::kGamma, 4, 0.3}, Case{Arrivals::kBursts, 19, 2}}) {
    SCOPED_TRACE(static_cast<int>(arrivals));
    const LoadPlan plan = MakePlan({.arrivals = arrivals,
                                    .rate = 25,
                                    .gamma_shape = 0.25,
                                    .burst = 10,
                                    .requests = 40'000,
                                    .seed = 7})
                              .value();
    const Gaps gaps = GapsOf(plan, 25);
    EXPECT_NEAR(gaps.mean, 1, 0.04);
    EXPECT_NEAR(gaps.variance, variance, tolerance);
    EXPECT_EQ(plan.concurrency, 0u);
  }
}

TEST(LoadPlanTest, TheSeedDecidesAllAndTheRateNoLength) {
  PlanOptions options{.arrivals = Arrivals::kGamma,
                      .rate = 5,
                      .requests = 200,
                      .prompt = ParseLengths("lognormal:100:1").value(),
                      .output = ParseLengths("10-50").value(),
                      .prefix_share = 0.5,
                      .prefix_groups = 3,
                      .seed = 9};
  const LoadPlan a = MakePlan(options).value(), b = MakePlan(options).value();
  EXPECT_EQ(a.requests, b.requests);
  options.rate = 50;
  const LoadPlan fast = MakePlan(options).value();
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    EXPECT_EQ(a.requests[i].prompt_words, fast.requests[i].prompt_words);
    EXPECT_EQ(a.requests[i].output_tokens, fast.requests[i].output_tokens);
  }
  options.seed = 10;
  EXPECT_NE(MakePlan(options).value().requests, fast.requests);
}

// Committed figures of a seed: a change of them changes what every recorded command means.
TEST(LoadPlanTest, ASeedNamesOneWorkloadForEver) {
  const LoadPlan plan = MakePlan({.arrivals = Arrivals::kPoisson,
                                  .rate = 10,
                                  .requests = 3,
                                  .prompt = ParseLengths("lognormal:100:1").value(),
                                  .output = ParseLengths("10-50").value(),
                                  .seed = 1})
                            .value();
  std::vector<std::int64_t> figures;
  for (const PlannedRequest& request : plan.requests) {
    figures.insert(figures.end(),
                   {request.arrival_ns / 1000, request.prompt_words, request.output_tokens});
  }
  EXPECT_THAT(figures, ::testing::ElementsAre(0, 12, 11, 5809, 16, 34, 315348, 15, 26));
}

TEST(LoadPlanTest, LengthsHaveTheirDistribution) {
  const auto mean_of = [](const char* lengths, std::uint32_t max) {
    const LoadPlan plan =
        MakePlan({.requests = 20'000, .prompt = ParseLengths(lengths).value(), .max_words = max})
            .value();
    double sum = 0;
    for (const PlannedRequest& request : plan.requests) {
      EXPECT_LE(request.prompt_words, max);
      sum += request.prompt_words;
    }
    return sum / 20'000;
  };
  EXPECT_EQ(mean_of("200", 1000), 200);
  EXPECT_NEAR(mean_of("100-300", 1000), 200, 3);
  EXPECT_NEAR(mean_of("lognormal:200:1", 1000), 200, 4);
  EXPECT_EQ(mean_of("200", 50), 50);
}

TEST(LoadPlanTest, ConversationsHaveTurns) {
  const LoadPlan plan = MakePlan({.arrivals = Arrivals::kPoisson,
                                  .rate = 10,
                                  .requests = 9,
                                  .turns = 3,
                                  .think_ns = 1'000'000'000})
                            .value();
  for (std::size_t i = 0; i < plan.requests.size(); ++i) {
    EXPECT_EQ(plan.requests[i].turn, i % 3);
    EXPECT_EQ(plan.requests[i].think_ns > 0, i % 3 > 0);
  }
  EXPECT_GT(plan.requests[3].arrival_ns, 0);
}

TEST(LoadPlanTest, ADurationEndsAnOpenLoop) {
  const LoadPlan plan = MakePlan({.arrivals = Arrivals::kConstant,
                                  .rate = 10,
                                  .requests = 1000,
                                  .duration_ns = 2'050'000'000})
                            .value();
  EXPECT_EQ(plan.requests.size(), 21u);
  EXPECT_NEAR(OfferedRate(plan), 10, 1e-6);
}

TEST(LoadPlanTest, ATraceIsReplayedFaster) {
  RequestTrace trace;
  trace.tenants = {""};
  trace.requests = {
      {.prompt_tokens = 10, .output_tokens = 5},
      {.arrival_ns = 4'000'000'000, .prompt_tokens = 5000, .output_tokens = 900, .blocks = {3}}};
  const LoadPlan plan =
      PlanOfTrace(trace, 2, {.max_words = 1000, .max_output = 100, .seed = 3}).value();
  ASSERT_EQ(plan.requests.size(), 2u);
  EXPECT_EQ(
      plan.requests[1],
      (PlannedRequest{
          .arrival_ns = 2'000'000'000, .prompt_words = 1000, .output_tokens = 100, .blocks = {3}}));
  EXPECT_EQ(PlanOfTrace(trace, 2, {.duration_ns = 1'000'000'000})->requests.size(), 1u);
  EXPECT_FALSE(PlanOfTrace(trace, 0, {}).ok());
}

TEST(LoadPlanTest, WhatIsOutOfRangeIsNamed) {
  for (const char* bad :
       {"", "0", "-5", "10-", "20-10", "1e3", "9999999", "lognormal:", "normal:1:2",
        "lognormal:0:1", "lognormal:10", "lognormal:10:nan", "lognormal:10:9"}) {
    EXPECT_EQ(ParseLengths(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  const std::vector<std::pair<PlanOptions, std::string>> cases = {
      {{.rate = 0}, "rate"},         {{.rate = NAN}, "rate"},
      {{.gamma_shape = 0}, "shape"}, {{.concurrency = 0}, "concurrency"},
      {{.requests = 0}, "requests"}, {{.turns = 0}, "turns"},
      {{.think_ns = -1}, "think"},   {{.prefix_share = 1.5}, "prefix share"},
      {{.burst = 0}, "burst"},       {{.prefix_groups = 0}, "prefix groups"}};
  for (const auto& [options, name] : cases) {
    const absl::Status status = MakePlan(options).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  for (const std::string& name : ArrivalNames()) EXPECT_TRUE(FindArrivals(name).ok());
  EXPECT_FALSE(FindArrivals("uniform").ok());
}

}  // namespace
}  // namespace flotilla::loadtest
