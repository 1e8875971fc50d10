// What a GPU computes by itself must be what the CPU computes: the words of kernels/cuda/ptx.h and
// simt.h, which have a twin for CPUs, and the formulas of kernels/ that both have in common. This
// header has one row for each, and kernels that apply it to arrays of operands.
//
// Like every kernel, twins.cu is compiled twice. It includes no library but CUDA and the standard
// one.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/ops.h"
#include "kernels/noise.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels::cuda {

enum class Twin : uint8_t {
  // Words: what they give depends on other lanes, or they have two definitions.
  kShuffleXor,
  kShuffleDown,
  kMultiplyS8,
  kMultiplyU8,
  kBytePermute,
  // Formulas.
  kFma,
  kAdd,
  kMultiply,
  kDivide,
  kSquareRoot,
  kRoundToInteger,
  kIntToFloat,
  kFloatToInt,
  kExp,
  kLog,
  kTanh,
  kErf,
  kFloatToBf16,
  kBf16ToFloat,
  kFloatToHalf,
  kHalfToFloat,
  kGumbelNoise,
  kNoiseHash,
  kMix64,
};
inline constexpr int kTwins = static_cast<int>(Twin::kMix64) + 1;
constexpr bool IsWord(Twin twin) { return twin <= Twin::kBytePermute; }

// Operands that a thread reads, as bits, and results that it writes, which are below 2^32 but for
// kMix64. A shuffle writes the results of all 32 masks or deltas. A product reads a, b and d, and
// writes d.
constexpr int OperandsOf(Twin twin) {
  if (twin == Twin::kShuffleXor || twin == Twin::kShuffleDown) return 1;
  if (twin == Twin::kMultiplyS8 || twin == Twin::kMultiplyU8) return 4 + 2 + 4;
  return 3;
}
constexpr int ResultsOf(Twin twin) {
  if (twin == Twin::kShuffleXor || twin == Twin::kShuffleDown) return 32;
  if (twin == Twin::kMultiplyS8 || twin == Twin::kMultiplyU8) return 4;
  return 1;
}

// The result of a formula for operands a, b and c; formulas of fewer ignore the others.
template <Twin kTwin>
FLOTILLA_HOST_DEVICE inline uint64_t Evaluate(uint32_t a, uint32_t b, uint32_t c) {
  static_assert(!IsWord(kTwin));
  const float x = BitsFloat(a), y = BitsFloat(b), z = BitsFloat(c);
  if constexpr (kTwin == Twin::kFma) return FloatBits(std::fma(x, y, z));
  if constexpr (kTwin == Twin::kAdd) return FloatBits(x + y);
  if constexpr (kTwin == Twin::kMultiply) return FloatBits(x * y);
  if constexpr (kTwin == Twin::kDivide) return FloatBits(x / y);
  if constexpr (kTwin == Twin::kSquareRoot) return FloatBits(std::sqrt(x));
  if constexpr (kTwin == Twin::kRoundToInteger) return FloatBits(std::nearbyint(x));
  if constexpr (kTwin == Twin::kIntToFloat) {
    return FloatBits(static_cast<float>(static_cast<int32_t>(a)));
  }
  if constexpr (kTwin == Twin::kFloatToInt) {
    // C++ does not define the conversion of what no integer is near to.
    if (!(std::fabs(x) < 0x1p31f)) return 0;
    return static_cast<uint32_t>(static_cast<int32_t>(x));
  }
  if constexpr (kTwin == Twin::kExp) return FloatBits(Exp(x));
  if constexpr (kTwin == Twin::kLog) return FloatBits(Log(x));
  if constexpr (kTwin == Twin::kTanh) return FloatBits(Tanh(x));
  if constexpr (kTwin == Twin::kErf) return FloatBits(Erf(x));
  if constexpr (kTwin == Twin::kFloatToBf16) return FloatToBf16(x);
  if constexpr (kTwin == Twin::kBf16ToFloat)
    return FloatBits(Bf16ToFloat(static_cast<uint16_t>(a)));
  if constexpr (kTwin == Twin::kFloatToHalf) return FloatToHalf(x);
  if constexpr (kTwin == Twin::kHalfToFloat)
    return FloatBits(HalfToFloat(static_cast<uint16_t>(a)));
  if constexpr (kTwin == Twin::kGumbelNoise) return FloatBits(GumbelNoise({a, b}, c));
  if constexpr (kTwin == Twin::kNoiseHash) return NoiseHash({a, b}, c);
  if constexpr (kTwin == Twin::kMix64) return Mix64(static_cast<uint64_t>(b) << 32 | a);
}

struct TwinArgs {
  const uint32_t* operands = nullptr;  // [count, OperandsOf]
  int64_t count = 0;                   // threads, a multiple of kTwinThreads
  uint64_t* results = nullptr;         // [count, ResultsOf]
};
inline constexpr int kTwinThreads = 128;

// Applies a twin to all operands. Returns as the functions of Ops do.
namespace device {
int RunTwin(Twin twin, const TwinArgs& args, Stream stream);
}
namespace simulated {
int RunTwin(Twin twin, const TwinArgs& args, Stream stream);
}

}  // namespace flotilla::kernels::cuda
