// Random: the only source of chance of a test, a function of a seed, which the test prints.
//
// It is SplitMix64 (Steele, Lea, Flood 2014) with distributions of our own, because those of
// <random> differ between standard libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flotilla::testing {

inline constexpr std::uint64_t kRandomStep = 0x9e3779b97f4a7c15ull;

// The finaliser of SplitMix64: a good hash of one word.
inline std::uint64_t MixBits(std::uint64_t x) {
  x += kRandomStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// In [-1, 1), from the highest 24 bits.
inline float UnitOf(std::uint64_t bits) {
  return static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-23f;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(MixBits(seed)) {}

  std::uint64_t Next() { return MixBits(state_ += kRandomStep); }
  // In [0, count).
  std::uint32_t Below(std::uint32_t count) { return static_cast<std::uint32_t>(Next() % count); }
  // In [low, high].
  std::uint32_t Between(std::uint32_t low, std::uint32_t high) {
    return low + Below(high - low + 1);
  }
  int Int(int low, int high) {
    return low + static_cast<int>(Below(static_cast<std::uint32_t>(high - low + 1)));
  }
  bool OneIn(std::uint32_t n) { return Below(n) == 0; }
  // Log-uniform in [1, 2^bits]: each number of bits is equally likely.
  std::uint32_t LogUniform(std::uint32_t bits) { return 1 + Below(1u << Between(0, bits)); }
  // Uniform in [-1, 1).
  float Unit() { return UnitOf(Next()); }
  std::vector<float> Floats(std::size_t count, float scale = 1.0f) {
    std::vector<float> floats(count);
    for (float& value : floats) value = Unit() * scale;
    return floats;
  }

 private:
  std::uint64_t state_;
};

}  // namespace flotilla::testing
