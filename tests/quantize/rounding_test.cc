// Grids, round to nearest, and the factors of AWQ.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "quantize/awq.h"
#include "quantize/grid.h"
#include "quantize/round_to_nearest.h"
#include "tests/quantize/small_problem.h"

namespace flotilla::quantize {
namespace {

TEST(GridTest, SpansTheWeights) {
  testing::Random random(1);
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const ScaleType type : {ScaleType::kBf16, ScaleType::kFp16}) {
        const Grid grid{.bits = bits, .symmetric = symmetric, .scales = type};
        for (int round = 0; round < 100; ++round) {
          std::vector<float> weights = random.Floats(32, 0.1f);
          const float shift = round % 2 == 0 ? 0 : 0.2f * random.Unit();
          for (float& weight : weights) weight += shift;
          const GroupScale scale = FitGroup(weights, grid);
          EXPECT_EQ(ScaleOf(BitsOf(scale.scale, type), type), scale.scale);
          EXPECT_EQ(symmetric && scale.zero != 0, false);
          EXPECT_GE(scale.zero, grid.low());
          EXPECT_LE(scale.zero, grid.high());
          for (const float weight : weights) {
            const int code = CodeOf(weight, scale, grid);
            ASSERT_GE(code, grid.low());
            ASSERT_LE(code, grid.high());
            // Half a step. Zeros are whole, and scales are rounded, which counts at the ends.
            const float steps = 0.5f + (symmetric ? 0 : 0.5f) + std::ldexp(1.0f, bits - 9);
            EXPECT_LE(std::fabs(WeightOf(code, scale) - weight), scale.scale * steps * 1.01f);
            for (const int other : {code - 1, code + 1}) {
              if (other < grid.low() || other > grid.high()) continue;
              EXPECT_LE(std::fabs(WeightOf(code, scale) - weight),
                        std::fabs(WeightOf(other, scale) - weight) * 1.0001f);
            }
          }
        }
      }
    }
  }
}

TEST(GridTest, WeightsOfZeroStayZero) {
  const std::vector<float> zeros(32, 0.0f);
  for (const bool symmetric : {true, false}) {
    const Grid grid{.bits = 4, .symmetric = symmetric};
    const GroupScale scale = FitGroup(zeros, grid);
    EXPECT_EQ(WeightOf(CodeOf(0, scale, grid), scale), 0);
  }
}

TEST(RoundToNearestTest, GroupsDoNotDependOnEachOther) {
  const SmallProblem problem(2, 5, 100, 1);
  const Grid grid{.bits = 4, .symmetric = false};
  const IntegerMatrix whole =
      RoundToNearest(problem.weights, problem.rows, problem.inputs, grid, 32, OneThread);
  EXPECT_EQ(whole.groups(), 4);  // the last has 4 inputs
  for (int64_t row = 0; row < problem.rows; ++row) {
    for (int64_t begin = 0; begin < problem.inputs; begin += 32) {
      const int64_t count = std::min<int64_t>(32, problem.inputs - begin);
      const auto part = std::span(problem.weights)
                            .subspan(static_cast<size_t>(row * problem.inputs + begin),
                                     static_cast<size_t>(count));
      const GroupScale scale = FitGroup(part, grid);
      for (int64_t k = 0; k < count; ++k) {
        EXPECT_EQ(whole.At(row, begin + k),
                  WeightOf(CodeOf(part[static_cast<size_t>(k)], scale, grid), scale));
      }
    }
  }
  const IntegerMatrix again =
      RoundToNearest(problem.weights, problem.rows, problem.inputs, grid, 32, Backwards);
  EXPECT_EQ(whole.codes, again.codes);
}

TEST(AwqTest, FactorsHelpAndAreTheBestOfThoseTried) {
  const SmallProblem problem(3, 48, 128, 600);
  const Grid grid{.bits = 3};
  const kernels::Ops& ops = kernels::GetOps(kernels::Isa::kReference);
  const FloatMatrix matrix{.rows = problem.rows, .weights = problem.weights, .factors = {}};
  const auto scales = SearchAwqScales({&matrix, 1}, *problem.importance, grid, 32, ops, OneThread);
  ASSERT_TRUE(scales.ok()) << scales.status();
  EXPECT_GT(scales->exponent, 0);
  EXPECT_LT(scales->error, 0.97 * scales->plain_error);
  // By the definition: columns times factors, rounded, over factors.
  std::vector<float> scaled = problem.weights;
  for (size_t i = 0; i < scaled.size(); ++i) {
    scaled[i] *= scales->factors[i % static_cast<size_t>(problem.inputs)];
  }
  struct Unscaled {
    const IntegerMatrix matrix;
    const std::vector<float>& factors;
    double At(int64_t row, int64_t k) const {
      return matrix.At(row, k) / factors[static_cast<size_t>(k)];
    }
  };
  const Unscaled unscaled{RoundToNearest(scaled, problem.rows, problem.inputs, grid, 32, OneThread),
                          scales->factors};
  const double error = problem.ErrorOf(unscaled);
  EXPECT_NEAR(scales->error / error, 1, 1e-3);
  const IntegerMatrix plain =
      RoundToNearest(problem.weights, problem.rows, problem.inputs, grid, 32, OneThread);
  EXPECT_NEAR(scales->plain_error / problem.ErrorOf(plain), 1, 1e-3);
}

}  // namespace
}  // namespace flotilla::quantize
