#include "quantize/smooth_quant.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "quantize/round_to_nearest.h"
#include "tests/quantize/small_problem.h"

namespace flotilla::quantize {
namespace {

TEST(SmoothQuantTest, FactorsAreThoseOfThePaper) {
  const SmallProblem problem(3, 10, 64, 50);
  const auto inputs = static_cast<size_t>(problem.inputs);
  const FloatMatrix first{.rows = 10, .weights = problem.weights, .factors = {}};
  FloatMatrix second = first;
  for (float& weight : second.weights) weight *= 2;
  for (size_t i = 5; i < second.weights.size(); i += inputs) second.weights[i] = 0;
  const FloatMatrix both[] = {first, second};
  for (const double alpha : {0.0, 0.5, 0.8, 1.0}) {
    const std::vector<float> factors = SmoothFactors(both, *problem.importance, alpha);
    ASSERT_EQ(factors.size(), inputs);
    for (size_t j = 0; j < inputs; ++j) {
      double input = 0, weight = 0;
      for (size_t i = j; i < problem.x.size(); i += inputs) {
        input = std::max<double>(input, std::fabs(problem.x[i]));
      }
      for (const FloatMatrix& matrix : both) {
        for (size_t i = j; i < matrix.weights.size(); i += inputs) {
          weight = std::max<double>(weight, std::fabs(matrix.weights[i]));
        }
      }
      const double expected = std::pow(input, alpha) / std::pow(weight, 1 - alpha);
      EXPECT_NEAR(factors[j], expected, expected / 256) << "input " << j;
    }
  }
  FloatMatrix zeros = first;
  std::fill(zeros.weights.begin(), zeros.weights.end(), 0.0f);
  for (const float factor : SmoothFactors({&zeros, 1}, *problem.importance, 0.5)) {
    EXPECT_EQ(factor, 1);
  }
}

// The outputs of int8 x int8, with a scale for each row of inputs and of weights.
TEST(SmoothQuantTest, OutputsLoseLess) {
  const SmallProblem problem(9, 40, 96, 120);
  const auto inputs = static_cast<size_t>(problem.inputs);
  const FloatMatrix matrix{.rows = problem.rows, .weights = problem.weights, .factors = {}};
  const auto error = [&](const std::vector<float>& factors) {
    std::vector<float> weights = problem.weights;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] *= factors[i % inputs];
    const IntegerMatrix rounded = RoundToNearest(weights, problem.rows, problem.inputs, {.bits = 8},
                                                 problem.inputs, OneThread);
    double sum = 0;
    for (int64_t s = 0; s < problem.samples; ++s) {
      const float* const x = problem.x.data() + s * problem.inputs;
      double largest = 0;
      for (size_t k = 0; k < inputs; ++k)
        largest = std::max<double>(largest, std::fabs(x[k] / factors[k]));
      for (int64_t r = 0; r < problem.rows; ++r) {
        double output = 0;
        for (int64_t k = 0; k < problem.inputs; ++k) {
          const double code =
              std::nearbyint(x[k] / factors[static_cast<size_t>(k)] * 127 / largest);
          output += code * largest / 127 * rounded.At(r, k) -
                    double{x[k]} * problem.weights[static_cast<size_t>(r * problem.inputs + k)];
        }
        sum += output * output;
      }
    }
    return sum;
  };
  const double plain = error(std::vector<float>(inputs, 1.0f));
  EXPECT_LT(error(SmoothFactors({&matrix, 1}, *problem.importance, 0.5)), 0.7 * plain);
}

}  // namespace
}  // namespace flotilla::quantize
