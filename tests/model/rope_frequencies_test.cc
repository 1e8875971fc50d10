// The frequencies of RoPE under each scaling, by transformers' formulas (modeling_rope_utils.py) in
// double precision, with the numbers of published models. Far from the beginning of a text a
// rotation is right only if the frequency is.
#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::model {
namespace {

constexpr double kPi = 3.14159265358979323846;

// The exponents are rounded to fp32, as in transformers.
std::vector<double> Plain(int dim, double base) {
  std::vector<double> frequencies;
  for (int i = 0; i < dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dim);
    frequencies.push_back(std::pow(base, -double{exponent}));
  }
  return frequencies;
}

// `tolerance` is relative: a few roundings to fp32, each of 6e-8.
void ExpectNear(const std::vector<float>& frequencies, const std::vector<double>& exact,
                double tolerance) {
  ASSERT_EQ(frequencies.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(frequencies[i], exact[i], exact[i] * tolerance) << "pair " << i;
  }
}

TEST(RopeFrequenciesTest, PlainOnesArePowersOfTheBase) {
  for (const double base : {1e4, 1.5e5, 5e5, 1e6, 1e7}) {
    for (const int dim : {16, 64, 80, 128, 256}) {
      SCOPED_TRACE(::testing::Message() << "base " << base << ", dim " << dim);
      ExpectNear(RopeFrequencies(static_cast<uint32_t>(dim), base), Plain(dim, base), 2e-7);
    }
  }
}

// Llama 3.1 and 3.2.
TEST(RopeFrequenciesTest, Llama3DividesLongWaves) {
  for (const double factor : {8.0, 32.0}) {
    SCOPED_TRACE(factor);
    std::vector<double> exact = Plain(128, 5e5);
    int kept = 0, mixed = 0, divided = 0;
    for (double& frequency : exact) {
      const double turns = 8192 * frequency / (2 * kPi);
      const double smooth = std::clamp((turns - 1) / (4 - 1), 0.0, 1.0);
      ++(smooth == 0 ? divided : smooth == 1 ? kept : mixed);
      frequency *= (1 - smooth) / factor + smooth;
    }
    EXPECT_TRUE(kept > 0 && mixed > 0 && divided > 0);
    std::vector<float> frequencies = RopeFrequencies(128, 5e5);
    ScaleAsLlama3({.factor = static_cast<float>(factor)}, frequencies);
    ExpectNear(frequencies, exact, 3e-7 + factor * 1e-7);
  }
}

TEST(RopeFrequenciesTest, YarnDividesPairsThatTurnSeldom) {
  struct Model {
    int dim;
    double base;
    YarnScaling numbers;
  };
  const Model models[] = {
      {128, 1e6, {.factor = 4, .original_context = 32768}},                     // Qwen2.5
      {64, 1e4, {.factor = 40, .original_context = 4096}},                      // DeepSeek V3
      {64, 1.5e5, {.factor = 32, .original_context = 4096, .truncate = false}}  // gpt-oss
  };
  for (const auto& [dim, base, numbers] : models) {
    SCOPED_TRACE(base);
    const auto pair_of = [&, dim = dim, base = base](double turns) {
      return dim * std::log(numbers.original_context / (turns * 2 * kPi)) / (2 * std::log(base));
    };
    double low = pair_of(32), high = pair_of(1);
    if (numbers.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    std::vector<double> exact = Plain(dim, base);
    int kept = 0, mixed = 0, divided = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      ++(ramp == 0 ? kept : ramp == 1 ? divided : mixed);
      exact[i] *= ramp / numbers.factor + (1 - ramp);
    }
    EXPECT_TRUE(kept > 0 && mixed > 0 && divided > 0);
    std::vector<float> frequencies = RopeFrequencies(static_cast<uint32_t>(dim), base);
    ScaleAsYarn(numbers, base, frequencies);
    ExpectNear(frequencies, exact, 3e-7 + numbers.factor * 1e-7);
  }
}

TEST(RopeFrequenciesTest, DynamicScalingHasALongerBase) {
  for (const double served : {2048.0, 3000.0, 8192.0, 131072.0}) {
    SCOPED_TRACE(served);
    const DynamicScaling numbers{.factor = 64, .trained = 2048, .served = served};
    const double base = 1e4 * std::pow(64 * served / 2048 - 63, 128.0 / 126);
    EXPECT_NEAR(DynamicBase(numbers, 128, 1e4), base, base * 1e-12);
    ExpectNear(RopeFrequencies(128, DynamicBase(numbers, 128, 1e4)), Plain(128, base), 2e-7);
  }
}

}  // namespace
}  // namespace flotilla::model
