#include "quantize/smooth_quant.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "quantize/grid.h"

namespace flotilla::quantize {

std::vector<float> SmoothFactors(std::span<const FloatMatrix> matrices,
                                 const Importance& importance, double alpha) {
  const auto inputs = static_cast<size_t>(importance.inputs());
  std::vector<float> largest(inputs);
  for (const FloatMatrix& matrix : matrices) {
    for (size_t i = 0; i < matrix.weights.size(); ++i) {
      float& column = largest[i % inputs];
      column = std::max(column, std::fabs(matrix.weights[i]));
    }
  }
  std::vector<float> factors;
  for (size_t i = 0; i < inputs; ++i) {
    const double input = importance.largest(static_cast<int64_t>(i)), weight = largest[i];
    const auto factor = static_cast<float>(std::pow(input, alpha) / std::pow(weight, 1 - alpha));
    const float kept = ScaleOf(BitsOf(factor, ScaleType::kBf16), ScaleType::kBf16);
    factors.push_back(input > 0 && weight > 0 && std::isnormal(kept) ? kept : 1);
  }
  return factors;
}

}  // namespace flotilla::quantize
