#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>

namespace flotilla::model {
namespace {

// The series use double and plain operations. Their relative error is about 1e-15, far below
// that of fp32, to which the results are rounded.
constexpr double kLn2 = 0.6931471805599453094;

// Natural logarithm of x > 0: x = f * 2^e with f in [sqrt(1/2), sqrt(2)), log f =
// 2 atanh((f - 1) / (f + 1)).
double LogSeries(double x) {
  int exponent = 0;
  double f = std::frexp(x, &exponent);
  if (f < 0.70710678118654752440) {
    f *= 2;
    --exponent;
  }
  const double s = (f - 1) / (f + 1);
  double sum = 0;
  for (int n = 25; n >= 1; n -= 2) sum = sum * s * s + 1.0 / n;
  return 2 * s * sum + exponent * kLn2;
}

// e^x by Taylor series after taking out powers of two.
double ExpSeries(double x) {
  const double n = std::floor(x / kLn2 + 0.5);
  const double r = x - n * kLn2;
  double sum = 1;
  for (int i = 20; i >= 1; --i) sum = 1 + sum * r / i;
  return std::ldexp(sum, static_cast<int>(n));
}

}  // namespace

double NaturalLog(double x) { return LogSeries(x); }

double DynamicBase(const DynamicScaling& scaling, uint32_t dim, double base) {
  const double stretch = scaling.factor * scaling.served / scaling.trained - (scaling.factor - 1);
  return base * ExpSeries(LogSeries(stretch) * dim / (dim - 2));
}

void ScaleAsYarn(const YarnScaling& scaling, double base, std::vector<float>& frequencies) {
  constexpr double kTwoPi = 6.283185307179586;
  const double dim = 2.0 * static_cast<double>(frequencies.size());
  // The pair that turns so many times in the original context.
  const auto pair_of = [&](double turns) {
    return dim * LogSeries(scaling.original_context / (turns * kTwoPi)) / (2 * LogSeries(base));
  };
  double low = pair_of(scaling.beta_fast), high = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double at = (static_cast<double>(i) - low) / (high - low);
    const auto ramp = static_cast<float>(std::clamp(at, 0.0, 1.0));
    const float scaled = frequencies[i] / scaling.factor;
    frequencies[i] = scaled * ramp + frequencies[i] * (1 - ramp);
  }
}

std::vector<float> RopeFrequencies(uint32_t dim, double base) {
  const double log_base = LogSeries(base);
  std::vector<float> frequencies(dim / 2);
  for (uint32_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    frequencies[i] = 1.0f / static_cast<float>(ExpSeries(log_base * exponent));
  }
  return frequencies;
}

void ScaleAsLlama3(const Llama3Scaling& scaling, std::vector<float>& frequencies) {
  constexpr float kTwoPi = 6.283185307179586f;
  const float low = scaling.original_context / scaling.low_freq_factor;
  const float high = scaling.original_context / scaling.high_freq_factor;
  for (float& frequency : frequencies) {
    const float wave = kTwoPi / frequency;
    if (wave < high) continue;
    const float scaled = frequency / scaling.factor;
    if (wave > low) {
      frequency = scaled;
      continue;
    }
    const float smooth = (scaling.original_context / wave - scaling.low_freq_factor) /
                         (scaling.high_freq_factor - scaling.low_freq_factor);
    frequency = (1 - smooth) * scaled + smooth * frequency;
  }
}

}  // namespace flotilla::model
