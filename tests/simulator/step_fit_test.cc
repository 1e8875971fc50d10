#include "simulator/step_fit.h"

#include "common/traces/seeded_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::simulator {
namespace {

using ::testing::HasSubstr;

const LinearModel kTruth{.step_ns = 4e6,
                         .prefill_row_ns = 0.8e6,
                         .decode_row_ns = 1.2e6,
                         .prefill_context_ns = 300,
                         .decode_context_ns = 900};

std::vector<MeasuredStep> Steps(const LinearModel& truth, double noise) {
  SeededRandom random(5);
  std::vector<MeasuredStep> steps;
  for (int i = 0; i < 2000; ++i) {
    MeasuredStep& step = steps.emplace_back();
    step.shape.prefill_rows = random.Below(3) == 0 ? random.Below(250) : 0;
    step.shape.prefill_context = step.shape.prefill_rows * (1 + random.Below(800));
    step.shape.decode_rows = 1 + random.Below(64);
    step.shape.decode_context = step.shape.decode_rows * (1 + random.Below(1500));
    const double factor = 1 + noise * (2 * random.Uniform() - 1);
    step.ns = static_cast<std::int64_t>(static_cast<double>(CostOf(truth, step.shape).ns) * factor);
  }
  return steps;
}

void ExpectNear(const LinearModel& a, const LinearModel& b, double relative) {
  EXPECT_NEAR(a.step_ns, b.step_ns, relative * b.step_ns);
  EXPECT_NEAR(a.prefill_row_ns, b.prefill_row_ns, relative * b.prefill_row_ns);
  EXPECT_NEAR(a.decode_row_ns, b.decode_row_ns, relative * b.decode_row_ns);
  EXPECT_NEAR(a.prefill_context_ns, b.prefill_context_ns, relative * b.prefill_context_ns);
  EXPECT_NEAR(a.decode_context_ns, b.decode_context_ns, relative * b.decode_context_ns);
}

TEST(StepFitTest, FindsTheCoefficientsOfExactSteps) {
  const StepFit fit = FitSteps(Steps(kTruth, 0)).value();
  ExpectNear(fit.model, kTruth, 1e-4);
  EXPECT_LT(fit.worst_error, 1e-4);
  EXPECT_EQ(fit.steps, 2000u);
}

TEST(StepFitTest, NoiseMovesThemLittleAndDoesNotBiasTheSum) {
  const StepFit fit = FitSteps(Steps(kTruth, 0.3)).value();
  ExpectNear(fit.model, kTruth, 0.15);
  EXPECT_NEAR(fit.mean_error, 0.15, 0.03);  // the mean of |x| for x uniform in +-0.3
  EXPECT_NEAR(fit.total_error, 0, 0.02);
}

TEST(StepFitTest, ACoefficientThatWouldBeNegativeIsZero) {
  std::vector<MeasuredStep> steps = Steps(kTruth, 0);
  for (MeasuredStep& step : steps) {
    step.ns -= static_cast<std::int64_t>(step.shape.decode_rows) * 2'400'000 - 160'000'000;
  }
  const StepFit fit = FitSteps(steps).value();
  EXPECT_EQ(fit.model.decode_row_ns, 0);
  EXPECT_GE(fit.model.step_ns, 0);
  EXPECT_GE(fit.model.decode_context_ns, 0);
}

TEST(StepFitTest, ATermThatNeverVariesIsLeftOut) {
  std::vector<MeasuredStep> steps;
  for (int i = 0; i < 20; ++i) {
    steps.push_back({.shape = {.decode_rows = 4, .decode_context = 100}, .ns = 5000});
  }
  const StepFit fit = FitSteps(steps).value();
  EXPECT_NEAR(static_cast<double>(CostOf(fit.model, steps[0].shape).ns), 5000, 1);
}

TEST(StepFitTest, NoiseIsWhatEqualStepsDifferBy) {
  std::vector<MeasuredStep> steps;
  for (const std::int64_t ns : {90, 100, 110, 100, 100}) {
    steps.push_back({.shape = {.decode_rows = 1, .decode_context = 10}, .ns = ns});
  }
  EXPECT_NEAR(FitSteps(steps).value().noise, 0.04, 1e-9);
}

TEST(StepFitTest, TooFewStepsAreRefused) {
  EXPECT_EQ(FitSteps(std::vector<MeasuredStep>(4, {.ns = 1})).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FitSteps(std::vector<MeasuredStep>(9)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(StepFitTest, StepsSurviveTheirFile) {
  const std::vector<MeasuredStep> steps = Steps(kTruth, 0.1);
  EXPECT_EQ(ParseSteps(StepsCsv(steps)).value(), steps);
}

TEST(StepFitTest, BadFilesAreRefusedByLineAndColumn) {
  const std::string head = "prefill_rows,decode_rows,prefill_context,decode_context,ns\n";
  EXPECT_THAT(ParseSteps(head + "0,1,0,5,100\n0,x,0,5,100\n").status().message(),
              HasSubstr("line 3: column decode_rows"));
  EXPECT_THAT(ParseSteps(head + "0,1,0,5,0\n").status().message(), HasSubstr("line 2: column ns"));
  EXPECT_THAT(ParseSteps(head + "0,1,0,5\n").status().message(), HasSubstr("line 2: 4 cells"));
  EXPECT_THAT(ParseSteps("decode_rows,ns\n1,2\n").status().message(),
              HasSubstr("column prefill_rows is missing"));
  EXPECT_FALSE(ParseSteps("").ok());
}

}  // namespace
}  // namespace flotilla::simulator
