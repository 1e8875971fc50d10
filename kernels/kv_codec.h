// What K and V are in the cache: the scalar twin of kernels/cpu/kv_write-inl.h and of the loads of
// attention. Attention computes in fp32 with the values that Decode gives.
//
//   fp32  as it is
//   bf16, fp16  the nearest number
//   int8  m + d c in one fma: of a token's K (or V) of one head, m is the least element, d the span
//         from m to the largest / 255, and c the nearest code from 0 to 255
//   fp8   d v: d is the largest magnitude / 448, and v the nearest E4M3
//         (common/types/weight_panel.h)
//
// m and d are bf16: m is rounded down and d up, so no element is out of range. Where an element is
// not finite, or a span or size is near the largest float (3e38, 1e38), the token's values are no
// numbers, so that the request ends.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/types/weight_panel.h"
#include "kernels/kv_layout.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

// The bits of d and m.
struct KvScale {
  uint16_t d = 0;
  uint16_t m = 0;
};
inline constexpr uint16_t kKvNan = 0x7FC0;

// The bits of the bf16 that is not less than a number >= 0.
inline uint16_t Bf16Above(float x) { return static_cast<uint16_t>((FloatBits(x) + 0xFFFFu) >> 16); }

// Of n elements of a token.
inline KvScale KvScaleOf(KvType type, const float* x, int n) {
  if (type != KvType::kInt8 && type != KvType::kFp8) return {};
  uint32_t largest = 0;  // the bits of |x| order like |x| itself, with NaN above infinity
  float low = x[0], high = x[0];
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = FloatBits(x[i]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  const bool finite = largest < 0x7F800000u;
  if (!finite) return {.d = kKvNan, .m = kKvNan};
  if (type == KvType::kFp8) {
    // Of sizes near the largest float, d v would not be finite.
    if (BitsFloat(largest) > 1e38f) return {.d = kKvNan, .m = kKvNan};
    return {.d = Bf16Above(BitsFloat(largest) / 448)};
  }
  const uint32_t bits = FloatBits(low + 0.0f);  // a zero without a sign
  const auto m = static_cast<uint16_t>((bits >> 31 != 0 ? bits + 0xFFFFu : bits) >> 16);
  const float span = high - Bf16ToFloat(m) + 0.0f;
  // A span that is not finite has no codes.
  if (!(span < 3e38f)) return {.d = kKvNan, .m = kKvNan};
  return {Bf16Above(span / 255), m};
}

// The element as it is stored.
inline void KvEncode(KvType type, float x, const KvScale& scale, std::byte* out) {
  uint8_t code = 0;
  switch (type) {
    case KvType::kF32:
      std::memcpy(out, &x, sizeof x);
      return;
    case KvType::kF16: {
      const uint16_t half = FloatToHalf(x);
      std::memcpy(out, &half, sizeof half);
      return;
    }
    case KvType::kBf16: {
      const uint16_t half = FloatToBf16(x);
      std::memcpy(out, &half, sizeof half);
      return;
    }
    case KvType::kInt8: {
      const float d = Bf16ToFloat(scale.d);
      if (!(d > 0)) break;
      const float c = std::nearbyint((x - Bf16ToFloat(scale.m)) / d);
      code = static_cast<uint8_t>(c < 0 ? 0 : c > 255 ? 255 : c);
      break;
    }
    case KvType::kFp8: {
      const float d = Bf16ToFloat(scale.d);
      if (d > 0) code = FloatToFp8(x / d);
      break;
    }
  }
  std::memcpy(out, &code, sizeof code);
}

// The element at `in` in fp32.
inline float KvDecode(KvType type, const std::byte* in, const KvScale& scale) {
  uint16_t half = 0;
  if (type == KvType::kF32) {
    float x;
    std::memcpy(&x, in, sizeof x);
    return x;
  }
  std::memcpy(&half, in, static_cast<size_t>(KvElementBytes(type)));
  switch (type) {
    case KvType::kF16:
      return HalfToFloat(half);
    case KvType::kInt8:
      return std::fma(Bf16ToFloat(scale.d), static_cast<float>(half), Bf16ToFloat(scale.m));
    case KvType::kFp8:
      // As the vector code has it: the bits of E4M3 at their place in fp16 are the value / 256.
      return Bf16ToFloat(scale.d) * 256 * (Fp8ToFloat(static_cast<uint8_t>(half)) / 256);
    default:
      return Bf16ToFloat(half);
  }
}

}  // namespace flotilla::kernels
