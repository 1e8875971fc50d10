// SimRandom: the simulation's only source of chance, a function of its seed.
#pragma once

#include <cstdint>

namespace flotilla {

// Finaliser of SplitMix64; a good hash of one word.
inline std::uint64_t SimMix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class SimRandom {
 public:
  explicit SimRandom(std::uint64_t seed) : state_(SimMix(seed)) {}

  std::uint64_t Next() { return SimMix(state_ += 0x9e3779b97f4a7c15ull); }
  // In [0, count).
  std::uint32_t Below(std::uint32_t count) { return static_cast<std::uint32_t>(Next() % count); }
  // In [low, high].
  std::uint32_t Between(std::uint32_t low, std::uint32_t high) {
    return low + Below(high - low + 1);
  }
  bool OneIn(std::uint32_t n) { return Below(n) == 0; }
  // Log-uniform in [1, 2^bits]: each number of bits is equally likely.
  std::uint32_t LogUniform(std::uint32_t bits) { return 1 + Below(1u << Between(0, bits)); }

 private:
  std::uint64_t state_;
};

}  // namespace flotilla
