// What `flotilla loadtest` shows while it runs, and what it predicts.
#include <string>

#include "cli/load_progress.h"
#include "cli/predict_load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loadtest/core/load_plan.h"
#include "simulator/machine.h"

namespace flotilla::cli {
namespace {

using loadtest::LoadPlan;
using loadtest::LoadResult;
using loadtest::PlanOptions;

TEST(LoadtestTest, ProgressHasRatesAndTheTimeLeft) {
  loadtest::LoadProgress progress{.elapsed_s = 10,
                                  .planned = 200,
                                  .sent = 54,
                                  .ended = 50,
                                  .failed = 0,
                                  .in_flight = 4,
                                  .events = 900};
  EXPECT_EQ(LoadProgressText(progress, 123.4, 0),
            "10 s, 50 of 200 requests, 4 in flight, 123 tokens/s, 30 s left");
  progress.failed = 2;
  EXPECT_EQ(LoadProgressText(progress, 123.4, 60),
            "10 s, 50 requests, 4 in flight, 123 tokens/s, 2 failed, 50 s left");
  EXPECT_EQ(LoadProgressText({.planned = 3}, 0, 0),
            "0 s, 0 of 3 requests, 0 in flight, 0 tokens/s");
}

// A machine whose steps take 20 ms whatever is in them, for at most 4 sequences.
simulator::Machine SteadyMachine() {
  simulator::Machine machine = simulator::FindMachine("this-cpu").value();
  machine.cost = simulator::LinearModel{.step_ns = 20e6};
  machine.max_seqs = 4;
  return machine;
}

TEST(LoadtestTest, APredictionHasTheFiguresOfALoadTest) {
  const LoadPlan plan = loadtest::MakePlan({.concurrency = 4,
                                            .requests = 40,
                                            .prompt = loadtest::ParseLengths("10").value(),
                                            .output = loadtest::ParseLengths("8").value()})
                            .value();
  const LoadResult result = PredictLoad(SteadyMachine(), plan, 1.5, {}).value();
  EXPECT_EQ(result.finished, 40);
  EXPECT_EQ(result.output_tokens, 320);
  EXPECT_EQ(result.prompt_tokens, 600);
  EXPECT_EQ(result.good_share, 1);
  EXPECT_EQ(result.peak_in_flight, 4);
  EXPECT_NEAR(result.itl_ms.p50, 20, 0.1);
  EXPECT_NEAR(result.tpot_ms.p50, 20, 0.1);
  EXPECT_NEAR(result.output_tokens_per_s, 4 / 0.020, 20);
  EXPECT_EQ(result.offered_per_s, 0);
}

TEST(LoadtestTest, APredictionKeepsTheArrivals) {
  PlanOptions options{.arrivals = PlanOptions::Arrivals::kConstant,
                      .rate = 10,
                      .requests = 50,
                      .output = loadtest::ParseLengths("8").value()};
  const LoadResult idle =
      PredictLoad(SteadyMachine(), loadtest::MakePlan(options).value(), 1, {}).value();
  EXPECT_NEAR(idle.offered_per_s, 10, 0.01);
  EXPECT_NEAR(idle.requests_per_s, 10, 0.5);
  EXPECT_LT(idle.ttft_ms.max, 60);
  options.rate = 100;  // four times what the machine can
  const LoadResult full =
      PredictLoad(SteadyMachine(), loadtest::MakePlan(options).value(), 1, {.ttft_ms = 500})
          .value();
  EXPECT_LT(full.good_share, 0.6);
  EXPECT_GT(full.ttft_ms.max, 1000);
}

TEST(LoadtestTest, ConversationsAreNotPredicted) {
  const LoadPlan plan = loadtest::MakePlan({.requests = 4, .turns = 2}).value();
  EXPECT_EQ(PredictLoad(SteadyMachine(), plan, 1, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla::cli
