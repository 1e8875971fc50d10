#include "kernels/rope_table.h"

#include <cmath>
#include <cstddef>

namespace flotilla::kernels {
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

// Cosine and sine of x in [0, 2^24). First a multiple of pi/2 is taken out, with pi/2 in
// three parts (33 bits each, so n times a part is exact). Then Taylor series give the values
// on [-pi/4, pi/4].
void CosSin(double x, float* cosine, float* sine) {
  constexpr double kPart1 = 1.57079632673412561417e+00;
  constexpr double kPart2 = 6.07710050630396597660e-11;
  constexpr double kPart3 = 2.02226624879595063154e-21;
  const double n = std::floor(x * 0.63661977236758134308 + 0.5);
  const double r = ((x - n * kPart1) - n * kPart2) - n * kPart3;
  const double z = r * r;
  double c = 1;
  double s = 1;
  for (int i = 18; i >= 2; i -= 2) {
    c = 1 - c * z / (i * (i - 1));
    s = 1 - s * z / (i * (i + 1));
  }
  s *= r;
  switch (static_cast<long long>(n) & 3) {
    case 0:
      *cosine = static_cast<float>(c);
      *sine = static_cast<float>(s);
      break;
    case 1:
      *cosine = static_cast<float>(-s);
      *sine = static_cast<float>(c);
      break;
    case 2:
      *cosine = static_cast<float>(-c);
      *sine = static_cast<float>(-s);
      break;
    default:
      *cosine = static_cast<float>(s);
      *sine = static_cast<float>(-c);
      break;
  }
}

}  // namespace

RopeTable::RopeTable(int positions, int dim, double base)
    : positions_(positions), dim_(dim), data_(static_cast<size_t>(positions) * dim) {
  const int half = dim / 2;
  const double log_base = LogSeries(base);
  std::vector<float> frequency(half);
  for (int i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    frequency[i] = 1.0f / static_cast<float>(ExpSeries(log_base * exponent));
  }
  for (int p = 0; p < positions; ++p) {
    float* row = data_.data() + static_cast<size_t>(p) * dim;
    for (int i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequency[i];
      CosSin(angle, row + i, row + half + i);
    }
  }
}

}  // namespace flotilla::kernels
