#include "kernels/rope_table.h"

#include <cmath>
#include <cstddef>

namespace flotilla::kernels {
namespace {

// Cosine and sine of x in [0, 2^24), by plain operations in double. Their relative error is about
// 1e-15, far below that of fp32, to which they are rounded. First a multiple of pi/2 is taken out,
// with pi/2 in three parts (33 bits each, so n times a part is exact). Then Taylor series give the
// values on [-pi/4, pi/4].
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

RopeTable::RopeTable(int positions, absl::Span<const float> frequencies, float magnitude)
    : positions_(positions),
      dim_(static_cast<int>((2 * frequencies.size() + 15) / 16 * 16)),
      data_(int64_t{positions} * dim_) {
  const size_t half = static_cast<size_t>(dim_) / 2;
  for (int p = 0; p < positions; ++p) {
    float* row = data_.data() + static_cast<size_t>(p) * dim_;
    for (size_t i = 0; i < half; ++i) {
      row[i] = 1;
      if (i >= frequencies.size()) continue;
      const float angle = static_cast<float>(p) * frequencies[i];
      CosSin(angle, row + i, row + half + i);
      row[i] *= magnitude;
      row[half + i] *= magnitude;
    }
  }
}

}  // namespace flotilla::kernels
