#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/quantize/small_problem.h"

namespace flotilla::quantize {
namespace {

// Inverts a matrix by Gauss and Jordan.
std::vector<double> Inverse(std::vector<double> a, int64_t n) {
  std::vector<double> b(a.size());
  for (int64_t i = 0; i < n; ++i) b[static_cast<size_t>(i * n + i)] = 1;
  for (int64_t c = 0; c < n; ++c) {
    const double pivot = a[static_cast<size_t>(c * n + c)];
    for (int64_t j = 0; j < n; ++j) {
      a[static_cast<size_t>(c * n + j)] /= pivot;
      b[static_cast<size_t>(c * n + j)] /= pivot;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double factor = a[static_cast<size_t>(i * n + c)];
      if (i == c || factor == 0) continue;
      for (int64_t j = 0; j < n; ++j) {
        a[static_cast<size_t>(i * n + j)] -= factor * a[static_cast<size_t>(c * n + j)];
        b[static_cast<size_t>(i * n + j)] -= factor * b[static_cast<size_t>(c * n + j)];
      }
    }
  }
  return b;
}

// The same as the paper first has it (Optimal Brain Quantization): the inverse of H of the inputs
// that are left, which loses a row and a column with each input.
IntegerMatrix ByDefinition(const SmallProblem& problem, double damp, bool by_importance,
                           const Grid& grid, int64_t group) {
  const int64_t n = problem.inputs;
  std::vector<double> h(problem.importance->hessian().begin(), problem.importance->hessian().end());
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) {
    mean += h[static_cast<size_t>(i * n + i)] / static_cast<double>(n);
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (by_importance) {
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
      return h[static_cast<size_t>(a * n + a)] > h[static_cast<size_t>(b * n + b)];
    });
  }
  for (int64_t i = 0; i < n; ++i) h[static_cast<size_t>(i * n + i)] += damp * mean;
  std::vector<double> inverse = Inverse(h, n);
  IntegerMatrix out(grid, problem.rows, n, group);
  std::vector<double> w(problem.weights.begin(), problem.weights.end());
  const auto fit = [&](int64_t row, int64_t begin) {
    std::vector<float> values;
    for (int64_t k = begin; k < std::min(begin + group, n); ++k) {
      values.push_back(static_cast<float>(w[static_cast<size_t>(row * n + k)]));
    }
    out.scales[static_cast<size_t>(row * out.groups() + begin / group)] = FitGroup(values, grid);
  };
  for (int64_t row = 0; by_importance && row < problem.rows; ++row) {
    for (int64_t begin = 0; begin < n; begin += group) fit(row, begin);
  }
  for (const int64_t i : order) {
    const double own = inverse[static_cast<size_t>(i * n + i)];
    for (int64_t row = 0; row < problem.rows; ++row) {
      if (!by_importance && i % group == 0) fit(row, i);
      double& weight = w[static_cast<size_t>(row * n + i)];
      const GroupScale& scale = out.scale(row, i);
      const int code = CodeOf(weight, scale, grid);
      out.codes[static_cast<size_t>(row * n + i)] = static_cast<int8_t>(code);
      const double error = (weight - WeightOf(code, scale)) / own;
      for (int64_t j = 0; j < n; ++j) {
        w[static_cast<size_t>(row * n + j)] -= error * inverse[static_cast<size_t>(i * n + j)];
      }
    }
    const std::vector<double> before = inverse;
    for (int64_t a = 0; a < n; ++a) {
      for (int64_t b = 0; b < n; ++b) {
        inverse[static_cast<size_t>(a * n + b)] -=
            before[static_cast<size_t>(a * n + i)] * before[static_cast<size_t>(i * n + b)] / own;
      }
    }
  }
  return out;
}

TEST(GptqTest, HasTheCodesOfItsDefinition) {
  for (const bool by_importance : {false, true}) {
    for (const bool symmetric : {false, true}) {
      const SmallProblem problem(11, 40, 96, 300);
      const Grid grid{.bits = 3, .symmetric = symmetric};
      const auto factor =
          GptqFactor::Create(problem.importance->hessian(), problem.inputs, 0.01, by_importance);
      ASSERT_TRUE(factor.ok()) << factor.status();
      const IntegerMatrix made = Gptq(problem.weights, problem.rows, *factor, grid, 32, OneThread);
      const IntegerMatrix expected = ByDefinition(problem, 0.01, by_importance, grid, 32);
      size_t same = 0;
      for (size_t i = 0; i < made.codes.size(); ++i) same += made.codes[i] == expected.codes[i];
      EXPECT_GE(static_cast<double>(same), 0.995 * static_cast<double>(made.codes.size()));
      EXPECT_NEAR(problem.ErrorOf(made) / problem.ErrorOf(expected), 1, 1e-3);
    }
  }
}

TEST(GptqTest, LosesLessThanRoundingToNearest) {
  for (const uint64_t seed : {1, 2, 3}) {
    const SmallProblem problem(seed, 50, 128, 500);
    for (const int bits : {2, 3, 4}) {
      const Grid grid{.bits = bits};
      const double nearest = problem.ErrorOf(
          RoundToNearest(problem.weights, problem.rows, problem.inputs, grid, 64, OneThread));
      for (const bool by_importance : {false, true}) {
        // With four codes, scales of weights that have grown beforehand are too large.
        if (bits == 2 && !by_importance) continue;
        const auto factor =
            GptqFactor::Create(problem.importance->hessian(), problem.inputs, 0.01, by_importance);
        ASSERT_TRUE(factor.ok());
        EXPECT_LT(
            problem.ErrorOf(Gptq(problem.weights, problem.rows, *factor, grid, 64, OneThread)),
            0.8 * nearest)
            << bits << " " << by_importance;
      }
    }
  }
}

TEST(GptqTest, RowsAndThreadsDoNotMatter) {
  const SmallProblem problem(4, 37, 96, 300);
  const Grid grid{.bits = 4, .symmetric = false};
  const auto factor = GptqFactor::Create(problem.importance->hessian(), problem.inputs, 0.01, true);
  ASSERT_TRUE(factor.ok());
  const IntegerMatrix whole = Gptq(problem.weights, problem.rows, *factor, grid, 32, OneThread);
  EXPECT_EQ(Gptq(problem.weights, problem.rows, *factor, grid, 32, Backwards).codes, whole.codes);
  const auto last = std::span(problem.weights).subspan(static_cast<size_t>(36 * problem.inputs));
  const IntegerMatrix alone = Gptq(last, 1, *factor, grid, 32, OneThread);
  for (int64_t k = 0; k < problem.inputs; ++k) EXPECT_EQ(alone.At(0, k), whole.At(36, k));
}

// SmoothQuant divides inputs and multiplies the weights of their columns.
TEST(GptqTest, KnowsInputsThatAreDivided) {
  SmallProblem problem(8, 30, 96, 300);
  const auto inputs = static_cast<size_t>(problem.inputs);
  std::vector<float> factors;
  for (size_t k = 0; k < inputs; ++k) factors.push_back(k % 9 == 0 ? 3.0f : 0.5f);
  const std::vector<double> divided = DividedHessian(problem.importance->hessian(), factors);
  for (size_t i = 0; i < problem.x.size(); ++i) problem.x[i] /= factors[i % inputs];
  for (size_t i = 0; i < problem.weights.size(); ++i) problem.weights[i] *= factors[i % inputs];
  Importance seen(problem.inputs, kernels::GetOps(kernels::Isa::kReference));
  ASSERT_TRUE(seen.Add(problem.x.data(), problem.samples, problem.inputs, OneThread).ok());
  ASSERT_EQ(divided.size(), seen.hessian().size());
  for (size_t i = 0; i < divided.size(); ++i) {
    const double size = std::sqrt(seen.hessian()[i / inputs * (inputs + 1)] *
                                  seen.hessian()[i % inputs * (inputs + 1)]);
    EXPECT_NEAR(divided[i], seen.hessian()[i], 1e-5 * size) << i;
  }
  const auto factor = GptqFactor::Create(divided, problem.inputs, 0.01, true);
  ASSERT_TRUE(factor.ok()) << factor.status();
  const Grid grid{.bits = 8};
  EXPECT_LT(problem.ErrorOf(Gptq(problem.weights, problem.rows, *factor, grid, 96, OneThread)),
            0.8 * problem.ErrorOf(RoundToNearest(problem.weights, problem.rows, problem.inputs,
                                                 grid, 96, OneThread)));
  const auto same = DividedHessian(problem.importance->hessian(), {});
  EXPECT_TRUE(std::ranges::equal(same, problem.importance->hessian()));
}

// Inputs that were never seen have no weight, and what is no matrix of inputs is refused.
TEST(GptqTest, DeadInputsAndBadMatrices) {
  SmallProblem problem(6, 4, 64, 200);
  for (int64_t s = 0; s < problem.samples; ++s) {
    problem.x[static_cast<size_t>(s * problem.inputs + 5)] = 0;
  }
  Importance importance(problem.inputs, kernels::GetOps(kernels::Isa::kReference));
  ASSERT_TRUE(importance.Add(problem.x.data(), problem.samples, problem.inputs, OneThread).ok());
  const auto factor = GptqFactor::Create(importance.hessian(), problem.inputs, 0.01, true);
  ASSERT_TRUE(factor.ok()) << factor.status();
  const IntegerMatrix made = Gptq(problem.weights, 4, *factor, {}, 32, OneThread);
  for (int64_t row = 0; row < 4; ++row) EXPECT_EQ(made.At(row, 5), 0);
  std::vector<double> bad(importance.hessian().begin(), importance.hessian().end());
  bad[3 * 64 + 3] = -1;
  EXPECT_FALSE(GptqFactor::Create(bad, 64, 0.01, true).ok());
  bad[3 * 64 + 3] = std::nan("");
  EXPECT_FALSE(GptqFactor::Create(bad, 64, 0.01, true).ok());
}

}  // namespace
}  // namespace flotilla::quantize
