#include "quantize/spqr.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/tensor.h"
#include "quantize/spqr_layout.h"
#include "tests/quantize/small_problem.h"

namespace flotilla::quantize {
namespace {

constexpr int64_t kRows = 40, kInputs = 96, kSamples = 200;
constexpr double kDamp = 0.01;

SpqrMatrix Make(const SmallProblem& problem, double share, ParallelItems parallel = OneThread) {
  const auto factor = GptqFactor::Create(problem.importance->hessian(), problem.inputs, kDamp,
                                         /*by_importance=*/false);
  EXPECT_TRUE(factor.ok()) << factor.status();
  return Spqr(problem.weights, problem.rows, *factor, share, parallel);
}

std::vector<float> Weights(const SpqrMatrix& matrix) {
  std::vector<float> weights(static_cast<size_t>(matrix.rows * matrix.inputs));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    matrix.ReadRow(row, std::span(weights).subspan(static_cast<size_t>(row * matrix.inputs),
                                                   static_cast<size_t>(matrix.inputs)));
  }
  return weights;
}

struct AtRow {
  const std::vector<float>& weights;
  int64_t inputs;
  float At(int64_t row, int64_t k) const { return weights[static_cast<size_t>(row * inputs + k)]; }
};

double ErrorOf(const SmallProblem& problem, const SpqrMatrix& matrix) {
  const std::vector<float> weights = Weights(matrix);
  return problem.ErrorOf(AtRow{weights, problem.inputs});
}

TEST(SpqrTest, OutliersMakeErrorsSmaller) {
  const SmallProblem problem(/*seed=*/3, kRows, kInputs, kSamples);
  const Grid grid{.bits = 3, .symmetric = false, .scales = ScaleType::kFp16};
  double before = problem.ErrorOf(
      RoundToNearest(problem.weights, kRows, kInputs, grid, /*group=*/16, OneThread));
  for (const double share : {0.0, 0.01, 0.05, 0.3}) {
    const SpqrMatrix matrix = Make(problem, share);
    const double error = ErrorOf(problem, matrix);
    EXPECT_LT(error, before) << share;
    before = error;
    const double made = static_cast<double>(matrix.outlier_count()) / (kRows * kInputs);
    EXPECT_NEAR(made, share, share / 10 + 1.0 / (kRows * kInputs));
    EXPECT_NEAR(matrix.bits_per_weight(),
                3.625 + 32 * made + 32.0 * (kRows + 1) / (kRows * kInputs), 1e-9);
  }
}

// A weight that is far from the others of its group is kept, and the others lose little by it.
TEST(SpqrTest, FarWeightsAreOutliers) {
  SmallProblem problem(/*seed=*/4, kRows, kInputs, kSamples);
  std::set<std::pair<int64_t, int64_t>> far;
  for (int64_t row = 0; row < kRows; row += 3) {
    const int64_t input = row * 7 % kInputs;
    problem.weights[static_cast<size_t>(row * kInputs + input)] = row % 2 == 0 ? 2 : -3;
    far.emplace(row, input);
  }
  // Others of their groups may matter as much, since grids move without them.
  const SpqrMatrix matrix = Make(problem, 4 * static_cast<double>(far.size()) / (kRows * kInputs));
  for (const auto& [row, input] : far) {
    EXPECT_TRUE(std::ranges::any_of(
        matrix.outliers[static_cast<size_t>(row)],
        [&](const SpqrMatrix::Outlier& outlier) { return outlier.input == input; }))
        << row << " " << input;
  }
  EXPECT_LT(ErrorOf(problem, matrix), ErrorOf(problem, Make(problem, 0)) / 4);
}

TEST(SpqrTest, ThreadsDoNotChangeIt) {
  const SmallProblem problem(/*seed=*/5, kRows, kInputs, kSamples);
  const SpqrMatrix one = Make(problem, 0.02), other = Make(problem, 0.02, Backwards);
  EXPECT_EQ(one.codes, other.codes);
  EXPECT_EQ(one.scales, other.scales);
  EXPECT_EQ(one.outliers, other.outliers);
}

// Zeros, rows that are all the same, and inputs that calibration has not seen.
TEST(SpqrTest, PlainGroupsStayWhatTheyAre) {
  SmallProblem problem(/*seed=*/6, 16, 32, kSamples);
  for (size_t i = 0; i < problem.weights.size(); ++i) problem.weights[i] = i / 32 < 8 ? 0.0f : 0.5f;
  const std::vector<float> weights = Weights(Make(problem, 0));
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_NEAR(weights[i], problem.weights[i], 0.01) << i;
}

// What the folder's reader makes of the tensors is the matrix.
TEST(SpqrTest, TheLayoutIsThatOfTheReader) {
  const SmallProblem problem(/*seed=*/7, kRows, kInputs, kSamples);
  for (const double share : {0.0, 0.02}) {
    const SpqrMatrix matrix = Make(problem, share);
    CompressedLayers layers;
    AddSpqr("layer", matrix, layers);
    std::map<std::string, uint64_t> sizes;
    for (const model::SafetensorsEntry& entry : layers.entries()) {
      ASSERT_TRUE(IsOfSpqr(entry.name));
      sizes[entry.name] = entry.shape[0];
    }
    const auto read = ReadCompressed(layers, SpqrConfig(sizes, {"lm_head"}));
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ((*read)->tensors.size(), 1u);
    const model::Tensor& tensor = (*read)->tensors[0];
    EXPECT_EQ(tensor.name, "layer.weight");
    const std::vector<float> weights = Weights(matrix);
    std::vector<float> row(kInputs);
    for (int64_t r = 0; r < kRows; ++r) {
      ASSERT_TRUE(model::DecodeRow(tensor, r, row).ok());
      EXPECT_TRUE(std::equal(row.begin(), row.end(), weights.begin() + r * kInputs)) << r;
    }
    EXPECT_EQ(tensor.composite->outliers(), matrix.outlier_count());
  }
}

}  // namespace
}  // namespace flotilla::quantize
