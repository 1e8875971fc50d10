// SeededRandom: the source of random numbers of workloads, a function of its seed.
//
// The distributions are our own, because those of <random> give different sequences in
// different standard libraries, and a seed must name one workload. One thread.
#pragma once

#include <cmath>
#include <cstdint>

namespace flotilla {

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): a good hash of one word.
inline std::uint64_t MixBits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class SeededRandom {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(MixBits(seed)) {}

  std::uint64_t Next() { return MixBits(state_ += 0x9e3779b97f4a7c15ull); }

  // A number in (0, 1), never 0, so that its logarithm exists.
  double Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }

  // In [0, count); count is not 0. The bias, count / 2^64, is negligible.
  std::uint64_t Below(std::uint64_t count) { return Next() % count; }

  // Exponentially distributed, with mean 1.
  double Exponential() { return -std::log(Uniform()); }

  // Normally distributed, with mean 0 and variance 1 (Box and Muller 1958; the second value is not
  // kept).
  double Normal() {
    const double radius = std::sqrt(-2.0 * std::log(Uniform()));
    return radius * std::cos(6.283185307179586 * Uniform());
  }

  // Gamma distributed, with mean `shape` and variance `shape`; shape > 0 (Marsaglia and Tsang
  // 2000).
  double Gamma(double shape) {
    if (shape < 1) return Gamma(shape + 1) * std::pow(Uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = Normal(), root = 1 + c * x;
      if (root <= 0) continue;
      const double v = root * root * root;
      if (std::log(Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace flotilla
