#include "model/rope_frequencies.h"

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
