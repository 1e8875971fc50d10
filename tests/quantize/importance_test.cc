#include "quantize/importance.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "quantize/round_to_nearest.h"
#include "tests/quantize/small_problem.h"

namespace flotilla::quantize {
namespace {

TEST(ImportanceTest, IsTheSumOfProducts) {
  // Rows that fill no block, and more than are summed in fp32 at a time.
  for (const int64_t samples : {1, 33, 700}) {
    const SmallProblem problem(samples, 2, 70, samples);
    const Importance& importance = *problem.importance;
    EXPECT_EQ(importance.rows(), samples);
    for (int64_t i = 0; i < problem.inputs; ++i) {
      double mean = 0, largest = 0;
      for (int64_t j = 0; j < problem.inputs; ++j) {
        double sum = 0, size = 0;
        for (int64_t s = 0; s < samples; ++s) {
          const double a = problem.x[static_cast<size_t>(s * problem.inputs + i)];
          const double b = problem.x[static_cast<size_t>(s * problem.inputs + j)];
          sum += a * b;
          size += std::fabs(a * b);
          if (j == 0) mean += std::fabs(a) / static_cast<double>(samples);
          largest = std::max(largest, std::fabs(a));
        }
        EXPECT_NEAR(importance.hessian()[static_cast<size_t>(i * problem.inputs + j)], sum,
                    1e-5 * size);
      }
      EXPECT_NEAR(importance.mean(i), mean, 1e-6 * mean);
      EXPECT_EQ(importance.largest(i), largest);
    }
  }
}

// Neither threads, nor instructions, nor the cut of rows into calls of 512 change a bit.
TEST(ImportanceTest, HasTheSameBitsOnEveryPath) {
  const SmallProblem problem(5, 2, 96, 1300);
  for (const kernels::Isa isa : kernels::DetectIsas()) {
    Importance other(problem.inputs, kernels::GetOps(isa));
    ASSERT_TRUE(other.Add(problem.x.data(), 1024, problem.inputs, Backwards).ok());
    ASSERT_TRUE(
        other.Add(problem.x.data() + 1024 * problem.inputs, 276, problem.inputs, Backwards).ok());
    const auto expected = problem.importance->hessian(), actual = other.hessian();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), actual.begin()))
        << kernels::GetOps(isa).name;
  }
}

TEST(OutputErrorTest, IsThatOfTheOutputs) {
  const SmallProblem problem(7, 70, 96, 200);
  const Grid grid{.bits = 3};
  const IntegerMatrix rounded =
      RoundToNearest(problem.weights, problem.rows, problem.inputs, grid, 32, OneThread);
  std::vector<float> errors;
  for (int64_t row = 0; row < problem.rows; ++row) {
    for (int64_t k = 0; k < problem.inputs; ++k) {
      errors.push_back(rounded.At(row, k) -
                       problem.weights[static_cast<size_t>(row * problem.inputs + k)]);
    }
  }
  const auto measure = OutputError::Create(*problem.importance,
                                           kernels::GetOps(kernels::Isa::kReference), OneThread);
  ASSERT_TRUE(measure.ok()) << measure.status();
  EXPECT_NEAR(measure->Of(errors, problem.rows, OneThread) / problem.ErrorOf(rounded), 1, 1e-4);
}

}  // namespace
}  // namespace flotilla::quantize
