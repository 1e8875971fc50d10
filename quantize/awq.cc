#include "quantize/awq.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "quantize/round_to_nearest.h"

namespace flotilla::quantize {
namespace {

constexpr int kExponents = 20;
constexpr double kLeastMean = 1e-4;

std::vector<float> FactorsFor(const Importance& importance, double exponent) {
  std::vector<double> raw;
  for (int64_t i = 0; i < importance.inputs(); ++i) {
    raw.push_back(std::pow(std::max(importance.mean(i), kLeastMean), exponent));
  }
  const auto [least, most] = std::ranges::minmax(raw);
  const double middle = std::sqrt(least * most);
  std::vector<float> factors;
  for (const double factor : raw) {
    factors.push_back(
        ScaleOf(BitsOf(static_cast<float>(factor / middle), ScaleType::kBf16), ScaleType::kBf16));
  }
  return factors;
}

}  // namespace

absl::StatusOr<AwqScales> SearchAwqScales(std::span<const FloatMatrix> matrices,
                                          const Importance& importance, const Grid& grid,
                                          int64_t group, const kernels::Ops& ops,
                                          ParallelItems parallel) {
  const auto measure = OutputError::Create(importance, ops, parallel);
  if (!measure.ok()) return measure.status();
  const int64_t inputs = importance.inputs();
  AwqScales best;
  for (int step = 0; step < kExponents; ++step) {
    const double exponent = static_cast<double>(step) / kExponents;
    std::vector<float> factors = FactorsFor(importance, exponent);
    double error = 0;
    for (const FloatMatrix& matrix : matrices) {
      std::vector<float> scaled = matrix.weights;
      for (size_t i = 0; i < scaled.size(); ++i) {
        scaled[i] *= factors[i % static_cast<size_t>(inputs)];
      }
      const IntegerMatrix rounded =
          RoundToNearest(scaled, matrix.rows, inputs, grid, group, parallel);
      std::vector<float>& errors = scaled;
      parallel(matrix.rows, [&](int64_t row) {
        for (int64_t k = 0; k < inputs; ++k) {
          const auto i = static_cast<size_t>(row * inputs + k);
          errors[i] = rounded.At(row, k) / factors[static_cast<size_t>(k)] - matrix.weights[i];
        }
      });
      error += measure->Of(errors, matrix.rows, parallel);
    }
    if (step == 0) best.plain_error = error;
    if (step > 0 && !(error < best.error)) continue;
    best.factors = std::move(factors);
    best.exponent = exponent;
    best.error = error;
  }
  return best;
}

}  // namespace flotilla::quantize
