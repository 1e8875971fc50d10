#include "quantize/k_quants.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "model/ggml_type.h"

namespace flotilla::quantize {
namespace {

using model::FloatToHalf;
using model::HalfToFloat;

// Weights that are all smaller round to zero: half of fp16's least number.
constexpr float kLeast = 0x1p-25f;
// Times that the scales of a block and its factors are refined. Most blocks end after two.
constexpr int kRounds = 4;
// Normal equations whose determinant is less, relative to its terms, are not solved.
constexpr double kDegenerate = 1e-9;

float Largest(std::span<const float> weights) {
  float largest = 0;
  for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
  return largest;
}

bool IsFinite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// The nearest of the codes 0 to `most`.
int CodeOf(float steps, float most) {
  return static_cast<int>(std::clamp(steps + 0.5f, 0.0f, most + 0.25f));
}

// The nearest factor; 0 if the unit is.
int FactorOf(float value, float unit, int low, int high) {
  if (unit == 0) return 0;
  const float steps = std::clamp(value / unit, static_cast<float>(low), static_cast<float>(high));
  return static_cast<int>(std::nearbyint(steps));
}

// The fp16 scale that makes the largest value `most` units. Of the numbers next to it, it is the
// larger one where fp16 has few: units that are too small would cut the value off.
uint16_t UnitFor(float largest, float most) {
  const uint16_t half = FloatToHalf(largest / most);
  const bool reaches =
      std::fabs(HalfToFloat(half)) * (std::fabs(most) + 0.5f) >= std::fabs(largest);
  return reaches ? half : static_cast<uint16_t>(half + 1);
}

// --- Q4_K ------------------------------------------------------------------------------------

constexpr size_t kLines = 8, kLineWeights = 32;

// 32 weights, and how much an error of each counts.
struct LineGroup {
  std::array<float, kLineWeights> x, weight;
  double sum_w = 0, sum_wx = 0, sum_wxx = 0;
};

// A weight is scale * code - minimum. Both are at least 0.
struct Line {
  float scale = 0, minimum = 0;
};

LineGroup MakeGroup(std::span<const float> weights) {
  LineGroup group;
  double squares = 0;
  for (const float x : weights) squares += static_cast<double>(x) * x;
  const auto mean = static_cast<float>(std::sqrt(squares / kLineWeights));
  for (size_t i = 0; i < kLineWeights; ++i) {
    group.x[i] = weights[i];
    group.weight[i] = mean + std::fabs(weights[i]);
    const double w = group.weight[i], x = weights[i];
    group.sum_w += w;
    group.sum_wx += w * x;
    group.sum_wxx += w * x * x;
  }
  return group;
}

// The line that fits the codes best which the weights have if they are `inverse` * (x + `minimum`).
// Returns its error, and a negative number if there is no such line.
double FitLine(const LineGroup& group, float inverse, float minimum, Line& line) {
  double sum_wq = 0, sum_wqq = 0, sum_wqx = 0;
  for (size_t i = 0; i < kLineWeights; ++i) {
    const double code = CodeOf((group.x[i] + minimum) * inverse, 15);
    const double wq = group.weight[i] * code;
    sum_wq += wq;
    sum_wqq += wq * code;
    sum_wqx += wq * group.x[i];
  }
  if (sum_wqq <= 0) return -1;
  // The normal equations of two unknowns. They are of one, if the minimum would be less than 0, or
  // if all codes are the same.
  double scale = sum_wqx / sum_wqq, least = 0;
  const double determinant = group.sum_w * sum_wqq - sum_wq * sum_wq;
  if (determinant > kDegenerate * group.sum_w * sum_wqq) {
    const double other = (sum_wq * sum_wqx - sum_wqq * group.sum_wx) / determinant;
    if (other > 0) {
      least = other;
      scale = (group.sum_w * sum_wqx - sum_wq * group.sum_wx) / determinant;
    }
  }
  if (scale <= 0) return -1;
  line = {static_cast<float>(scale), static_cast<float>(least)};
  return std::max(0.0, group.sum_wxx - 2 * scale * sum_wqx + 2 * least * group.sum_wx +
                           scale * scale * sum_wqq - 2 * scale * least * sum_wq +
                           least * least * group.sum_w);
}

Line SearchLine(const LineGroup& group) {
  const auto [low, high] = std::minmax_element(group.x.begin(), group.x.end());
  const float minimum = -std::min(*low, 0.0f), span = *high + minimum;
  Line best{.scale = 0, .minimum = minimum};
  // Weights that are all the same, or nearly so.
  if (span < kLeast) return best;
  double error = -1;
  const auto consider = [&](float inverse, float least) {
    Line line;
    const double other = FitLine(group, inverse, least, line);
    if (other < 0 || (error >= 0 && other >= error)) return false;
    error = other;
    best = line;
    return true;
  };
  // Steps in the span. Fewer than 15 would waste codes, more cut off what lies outside.
  for (float steps = 13; steps <= 18; steps += 0.25f) consider(steps / span, minimum);
  if (error < 0) return {.scale = span / 15, .minimum = minimum};
  for (int round = 0; round < kRounds; ++round) {
    if (!consider(1 / best.scale, best.minimum)) break;
  }
  return best;
}

struct Q4Block {
  uint16_t scale = 0, minimum = 0;  // fp16
  std::array<uint8_t, kLines> factors{}, minimum_factors{};
  std::array<uint8_t, kKBlock> codes{};
  double error = 0;
};

// The codes nearest to the weights of a group, and their error.
double NearestCodes(const LineGroup& group, const Line& line, uint8_t* codes) {
  const float inverse = line.scale > 0 ? 1 / line.scale : 0;
  double error = 0;
  for (size_t i = 0; i < kLineWeights; ++i) {
    const int code = CodeOf((group.x[i] + line.minimum) * inverse, 15);
    codes[i] = static_cast<uint8_t>(code);
    const float off = line.scale * static_cast<float>(code) - line.minimum - group.x[i];
    error += static_cast<double>(group.weight[i]) * off * off;
  }
  return error;
}

// The best block with these scales: each factor is one of the three nearest to what is wanted.
Q4Block FillQ4(std::span<const LineGroup> groups, std::span<const Line> wanted, uint16_t scale,
               uint16_t minimum) {
  Q4Block block{.scale = scale, .minimum = minimum};
  const float d = HalfToFloat(scale), m = HalfToFloat(minimum);
  for (size_t g = 0; g < kLines; ++g) {
    const int f = FactorOf(wanted[g].scale, d, 0, 63);
    const int h = FactorOf(wanted[g].minimum, m, 0, 63);
    double best = -1;
    for (int factor = std::max(f - 1, 0); factor <= std::min(f + 1, 63); ++factor) {
      for (int other = std::max(h - 1, 0); other <= std::min(h + 1, 63); ++other) {
        const Line line{d * static_cast<float>(factor), m * static_cast<float>(other)};
        uint8_t codes[kLineWeights];
        const double error = NearestCodes(groups[g], line, codes);
        if (best >= 0 && error >= best) continue;
        best = error;
        block.factors[g] = static_cast<uint8_t>(factor);
        block.minimum_factors[g] = static_cast<uint8_t>(other);
        std::memcpy(block.codes.data() + g * kLineWeights, codes, sizeof codes);
      }
    }
    block.error += best;
  }
  return block;
}

// The scales of the block that fit its factors and codes best. False: they are as they were, or
// there are none.
bool RefineQ4(std::span<const LineGroup> groups, const Q4Block& block, uint16_t& scale,
              uint16_t& minimum) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // of a = factor * code, b = minimum's factor
  for (size_t g = 0; g < kLines; ++g) {
    for (size_t i = 0; i < kLineWeights; ++i) {
      const double w = groups[g].weight[i], x = groups[g].x[i], b = block.minimum_factors[g];
      const double a = block.factors[g] * block.codes[g * kLineWeights + i];
      aa += w * a * a;
      ab += w * a * b;
      bb += w * b * b;
      ax += w * a * x;
      bx += w * b * x;
    }
  }
  const double determinant = aa * bb - ab * ab;
  double d = HalfToFloat(block.scale), m = HalfToFloat(block.minimum);
  if (determinant > kDegenerate * aa * bb) {
    d = (bb * ax - ab * bx) / determinant;
    m = (ab * ax - aa * bx) / determinant;
  } else if (aa > 0 && bb == 0) {
    d = ax / aa;
  }
  if (d < 0 || m < 0) return false;
  const uint16_t new_scale = FloatToHalf(static_cast<float>(d));
  const uint16_t new_minimum = FloatToHalf(static_cast<float>(m));
  if (!IsFinite(new_scale) || !IsFinite(new_minimum)) return false;
  if (new_scale == block.scale && new_minimum == block.minimum) return false;
  scale = new_scale;
  minimum = new_minimum;
  return true;
}

// --- Q6_K ------------------------------------------------------------------------------------

constexpr size_t kRuns = 16, kRunWeights = 16;

struct Q6Block {
  uint16_t scale = 0;  // fp16
  std::array<int8_t, kRuns> factors{};
  std::array<uint8_t, kKBlock> codes{};  // 32 more than what they stand for
  double error = 0;
};

// The scale with the least error, of either sign.
float SearchScale(std::span<const float> weights) {
  float extreme = 0;
  for (const float x : weights) {
    if (std::fabs(x) > std::fabs(extreme)) extreme = x;
  }
  if (std::fabs(extreme) < kLeast) return 0;
  double best = 0, scale = 0;
  const auto consider = [&](float inverse) {
    double sum_qx = 0, sum_qq = 0;  // weighted by x^2
    for (const float x : weights) {
      const double code = CodeOf(x * inverse + 32, 63) - 32;
      const double wq = static_cast<double>(x) * x * code;
      sum_qx += wq * x;
      sum_qq += wq * code;
    }
    // The error is the sum of the weighted squares less this gain.
    if (sum_qq > 0 && sum_qx * sum_qx > best * sum_qq) {
      best = sum_qx * sum_qx / sum_qq;
      scale = sum_qx / sum_qq;
    }
  };
  // The code of the extreme: -32 is the last at one end, 31 at the other.
  for (float code = 29; code <= 34; code += 0.25f) {
    consider(-code / extreme);
    if (code <= 33) consider(code / extreme);
  }
  for (int round = 0; round < kRounds; ++round) {
    const double before = best;
    if (scale != 0) consider(static_cast<float>(1 / scale));
    if (best <= before) break;
  }
  return static_cast<float>(scale);
}

// The best block with this scale: each factor is one of the three nearest to what is wanted.
Q6Block FillQ6(std::span<const float> weights, std::span<const float> wanted, uint16_t half) {
  Q6Block block{.scale = half};
  const float d = HalfToFloat(half);
  for (size_t g = 0; g < kRuns; ++g) {
    const std::span<const float> run = weights.subspan(g * kRunWeights, kRunWeights);
    const int f = FactorOf(wanted[g], d, -128, 127);
    double best = -1;
    for (int factor = std::max(f - 1, -128); factor <= std::min(f + 1, 127); ++factor) {
      const float scale = d * static_cast<float>(factor);
      const float inverse = scale != 0 ? 1 / scale : 0;
      uint8_t codes[kRunWeights];
      double error = 0;
      for (size_t i = 0; i < kRunWeights; ++i) {
        const int code = CodeOf(run[i] * inverse + 32, 63);
        codes[i] = static_cast<uint8_t>(code);
        const double off = scale * static_cast<float>(code - 32) - run[i];
        error += static_cast<double>(run[i]) * run[i] * off * off;
      }
      if (best >= 0 && error >= best) continue;
      best = error;
      block.factors[g] = static_cast<int8_t>(factor);
      std::memcpy(block.codes.data() + g * kRunWeights, codes, sizeof codes);
    }
    block.error += best;
  }
  return block;
}

// The scale that fits the factors and codes best. It is not finite if there is none.
uint16_t RefineQ6(std::span<const float> weights, const Q6Block& block) {
  double aa = 0, ax = 0;
  for (size_t i = 0; i < kKBlock; ++i) {
    const double x = weights[i];
    const double a = block.factors[i / kRunWeights] * (block.codes[i] - 32);
    aa += x * x * a * a;
    ax += x * x * a * x;
  }
  return aa > 0 ? FloatToHalf(static_cast<float>(ax / aa)) : block.scale;
}

}  // namespace

bool EncodeQ4_K(std::span<const float, kKBlock> weights, std::span<std::byte, 144> out) {
  std::memset(out.data(), 0, out.size());
  const float largest = Largest(weights);
  if (largest < kLeast) return true;
  if (largest > 65504.0f * 63 * 15) return false;
  std::array<LineGroup, kLines> groups;
  std::array<Line, kLines> wanted;
  Line most;
  for (size_t g = 0; g < kLines; ++g) {
    groups[g] = MakeGroup(weights.subspan(g * kLineWeights, kLineWeights));
    wanted[g] = SearchLine(groups[g]);
    most.scale = std::max(most.scale, wanted[g].scale);
    most.minimum = std::max(most.minimum, wanted[g].minimum);
  }
  uint16_t scale = UnitFor(most.scale, 63), minimum = UnitFor(most.minimum, 63);
  if (!IsFinite(scale) || !IsFinite(minimum)) return false;
  Q4Block best = FillQ4(groups, wanted, scale, minimum);
  for (int round = 0; round < kRounds && RefineQ4(groups, best, scale, minimum); ++round) {
    const Q4Block block = FillQ4(groups, wanted, scale, minimum);
    if (block.error >= best.error) break;
    best = block;
  }
  // Factors of 6 bits: the upper two of the last four lie above those of the first four.
  std::array<uint8_t, 12> packed;
  for (size_t g = 0; g < 4; ++g) {
    const int late = best.factors[g + 4], late_minimum = best.minimum_factors[g + 4];
    packed[g] = static_cast<uint8_t>(best.factors[g] | late >> 4 << 6);
    packed[g + 4] = static_cast<uint8_t>(best.minimum_factors[g] | late_minimum >> 4 << 6);
    packed[g + 8] = static_cast<uint8_t>((late & 15) | (late_minimum & 15) << 4);
  }
  std::memcpy(out.data(), &best.scale, 2);
  std::memcpy(out.data() + 2, &best.minimum, 2);
  std::memcpy(out.data() + 4, packed.data(), packed.size());
  for (size_t i = 0; i < kKBlock; ++i) {
    const size_t group = i / kLineWeights, at = 16 + group / 2 * 32 + i % kLineWeights;
    out[at] |= static_cast<std::byte>(best.codes[i] << group % 2 * 4);
  }
  return true;
}

bool EncodeQ6_K(std::span<const float, kKBlock> weights, std::span<std::byte, 210> out) {
  std::memset(out.data(), 0, out.size());
  const float largest = Largest(weights);
  if (largest > 65504.0f * 128 * 32) return false;
  Q6Block best;
  best.codes.fill(32);
  if (largest >= kLeast) {
    std::array<float, kRuns> wanted;
    float extreme = 0;
    for (size_t g = 0; g < kRuns; ++g) {
      wanted[g] = SearchScale(weights.subspan(g * kRunWeights, kRunWeights));
      if (std::fabs(wanted[g]) > std::fabs(extreme)) extreme = wanted[g];
    }
    uint16_t scale = UnitFor(extreme, -128);
    if (!IsFinite(scale)) return false;
    best = FillQ6(weights, wanted, scale);
    for (int round = 0; round < kRounds; ++round) {
      scale = RefineQ6(weights, best);
      if (!IsFinite(scale) || scale == best.scale) break;
      const Q6Block block = FillQ6(weights, wanted, scale);
      if (block.error >= best.error) break;
      best = block;
    }
  }
  for (size_t i = 0; i < kKBlock; ++i) {
    const size_t half = i / 128, quarter = i % 128 / 32, l = i % 32;
    out[half * 64 + quarter % 2 * 32 + l] |=
        static_cast<std::byte>((best.codes[i] & 15) << quarter / 2 * 4);
    out[128 + half * 32 + l] |= static_cast<std::byte>(best.codes[i] >> 4 << quarter * 2);
  }
  std::memcpy(out.data() + 192, best.factors.data(), best.factors.size());
  std::memcpy(out.data() + 208, &best.scale, 2);
  return true;
}

}  // namespace flotilla::quantize
