// ScaleAndZero: a scale in fp32 and a whole zero in one word of 32 bits. Scales of fp16 and of bf16
// leave the lower 13 bits of fp32 free, and those are the zero, in two's complement.
#pragma once

#include <cstdint>

#include "kernels/packing/kind.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

// Whether a kind whose codes are 2^n from `lowest` on, stored from `stored` on, packs the encoding:
// codes with zeros, or others with a scale that fp16 does not hold.
constexpr bool PacksWithZeros(const WeightEncoding& encoding, int lowest, int stored) {
  const int low = encoding.has_zeros ? stored : lowest;
  if (encoding.scales == WeightEncoding::Scales::kFp32) return false;
  if (!encoding.has_zeros && encoding.scales == WeightEncoding::Scales::kFp16) return false;
  return encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                    .scales = encoding.scales,
                                    .low = static_cast<int8_t>(low),
                                    .high = static_cast<int8_t>(low - 2 * lowest - 1),
                                    .has_zeros = encoding.has_zeros};
}

// The functions take the words of all columns: [kPanelColumns].
struct ScaleAndZero {
  static constexpr int kZeroBits = 13;

  static FLOTILLA_INLINE uint32_t Join(const WeightEncoding& encoding, uint16_t scale, int zero) {
    const float wide =
        encoding.scales == WeightEncoding::Scales::kBf16 ? Bf16ToFloat(scale) : HalfToFloat(scale);
    return FloatBits(wide) | (static_cast<uint32_t>(zero) & kZeroMask);
  }

  static FLOTILLA_INLINE float Scale(const std::byte* words, int lane) {
    return BitsFloat(LoadAs<uint32_t>(words + lane * 4) & ~kZeroMask);
  }
  static FLOTILLA_INLINE int Zero(const std::byte* words, int lane) {
    constexpr int kRest = 32 - kZeroBits;
    return static_cast<int32_t>(LoadAs<uint32_t>(words + lane * 4) << kRest) >> kRest;
  }

  // Those of the 16 columns of a half.
  template <class S>
  static FLOTILLA_INLINE typename S::F Scales(const std::byte* words, int half) {
    const auto mask = S::ISet1(static_cast<int32_t>(~kZeroMask));
    return S::FromBits(S::IAnd(S::ILoad(words + half * 64), mask));
  }
  template <class S>
  static FLOTILLA_INLINE typename S::I Zeros(const std::byte* words, int half) {
    constexpr int kRest = 32 - kZeroBits;
    return S::template Sar<kRest>(S::template Shl<kRest>(S::ILoad(words + half * 64)));
  }

 private:
  static constexpr uint32_t kZeroMask = (1u << kZeroBits) - 1;
};

}  // namespace flotilla::kernels
