#include "quantize/grid.h"

#include <algorithm>
#include <cmath>

#include "kernels/scalar_math.h"

namespace flotilla::quantize {

uint16_t BitsOf(float scale, ScaleType type) {
  return type == ScaleType::kBf16 ? kernels::FloatToBf16(scale) : kernels::FloatToHalf(scale);
}

float ScaleOf(uint16_t bits, ScaleType type) {
  return type == ScaleType::kBf16 ? kernels::Bf16ToFloat(bits) : kernels::HalfToFloat(bits);
}

GroupScale FitGroup(std::span<const float> weights, const Grid& grid) {
  float least = 0, greatest = 0;
  for (const float weight : weights) {
    least = std::min(least, weight);
    greatest = std::max(greatest, weight);
  }
  const auto steps = static_cast<float>(grid.high() - grid.low());
  const float largest = std::max(-least, greatest);
  const float exact = grid.symmetric ? largest / (steps / 2) : (greatest - least) / steps;
  GroupScale group{.scale = ScaleOf(BitsOf(exact, grid.scales), grid.scales)};
  if (grid.symmetric || !(group.scale > 0) || !std::isfinite(group.scale)) return group;
  const float zero = static_cast<float>(grid.low()) - std::nearbyint(least / group.scale);
  group.zero = static_cast<int>(
      std::clamp(zero, static_cast<float>(grid.low()), static_cast<float>(grid.high())));
  return group;
}

int CodeOf(double weight, const GroupScale& group, const Grid& grid) {
  if (!(group.scale > 0)) return group.zero;
  const double code = std::nearbyint(weight / group.scale) + group.zero;
  return static_cast<int>(
      std::clamp(code, static_cast<double>(grid.low()), static_cast<double>(grid.high())));
}

}  // namespace flotilla::quantize
