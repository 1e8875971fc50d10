// What K and V are in the cache: the scalar twin of kernels/cpu/kv_write-inl.h and of the loads of
// attention. Attention computes in fp32 with the values that Decode gives.
//
//   fp32  as it is
//   bf16, fp16, fp8_e5m2  the nearest number
//   int8, int4, int2  m + d c in one fma: m is the least element, d the span from m to the largest
//         over the largest code (255, 15, 3), and c the nearest code. int8 has them of a token's K
//         (or V) of one head. Of int4 and int2, K has them of one element in the 64 tokens of a
//         run, and V of each 64 elements of a token; both are made of the bf16 of the open run
//   fp8   d v: d is the largest magnitude of a token's K (or V) of one head / 448, and v the
//         nearest E4M3 (common/types/weight_panel.h). Or d is given; then v is at most 448
//
// m and d are bf16: m is rounded down and d up, so no element is out of range but for a given d.
// Where an element is not finite, or a span or size is near the largest float (3e38, 1e38), the
// values with that scale are no numbers, so that the request ends.
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

constexpr int LargestKvCode(KvType type) { return (1 << KvElementBits(type)) - 1; }

// E5M2: the upper byte of an fp16. The nearest of them, ties to even. What would round past 57,344
// is no number: infinite keys could have no weight at all, without anybody's notice.
inline uint8_t FloatToE5m2(float value) {
  const uint32_t bits = FloatBits(value), size = bits & 0x7FFFFFFFu;
  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  if (size >= FloatBits(61440.0f)) return sign | 0x7E;  // NaN, too
  if (size < FloatBits(0x1p-14f)) {
    // In units of 2^-16, rounded by the addition.
    return static_cast<uint8_t>(sign | (FloatBits(BitsFloat(size) + 0x1p7f) & 7));
  }
  const uint32_t rounded = size + 0xFFFFFu + (size >> 21 & 1);
  return static_cast<uint8_t>(sign | ((rounded >> 21) - (112u << 2)));
}

// Of n elements that share a scale. The d of fp8 is `given`, rounded up; 0: it is made of the
// elements.
inline KvScale KvScaleOf(KvType type, const float* x, int n, float given = 0) {
  if (!HasScales(type)) return {};
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
    return {.d = Bf16Above(given > 0 ? given : BitsFloat(largest) / 448)};
  }
  const uint32_t bits = FloatBits(low + 0.0f);  // a zero without a sign
  const auto m = static_cast<uint16_t>((bits >> 31 != 0 ? bits + 0xFFFFu : bits) >> 16);
  const float span = high - Bf16ToFloat(m) + 0.0f;
  // A span that is not finite has no codes.
  if (!(span < 3e38f)) return {.d = kKvNan, .m = kKvNan};
  return {Bf16Above(span / static_cast<float>(LargestKvCode(type))), m};
}

// Stores element `index` of K or V. Codes of fewer than 8 bits leave their neighbours as they are.
inline void KvEncode(KvType type, float x, const KvScale& scale, int64_t index, std::byte* out) {
  const auto store = [&](auto element) {
    std::memcpy(out + index * static_cast<int64_t>(sizeof element), &element, sizeof element);
  };
  const float d = Bf16ToFloat(scale.d);
  if (HasCodes(type)) {
    const auto largest = static_cast<float>(LargestKvCode(type));
    const float c = d > 0 ? std::nearbyint((x - Bf16ToFloat(scale.m)) / d) : 0;
    const auto code = static_cast<uint8_t>(c < 0 ? 0 : c > largest ? largest : c);
    if (type == KvType::kInt8) return store(code);
    std::byte* const at = out + KvBytes(type, index / 16 * 16);
    const int bit = KvCodeBit(type, static_cast<int>(index % 16)), shift = bit % 8;
    const auto mask = static_cast<uint8_t>(LargestKvCode(type) << shift);
    const auto rest = static_cast<uint8_t>(std::to_integer<uint8_t>(at[bit / 8]) & ~mask);
    at[bit / 8] = static_cast<std::byte>(rest | code << shift);
    return;
  }
  switch (type) {
    case KvType::kF32:
      return store(x);
    case KvType::kF16:
      // What would round past 65,504 is no number, likewise.
      return store(std::fabs(x) < 65520.0f ? FloatToHalf(x) : uint16_t{0x7E00});
    case KvType::kFp8:
      return store(d > 0 ? FloatToFp8(x / d) : uint8_t{0});
    case KvType::kFp8E5m2:
      return store(FloatToE5m2(x));
    default:
      return store(FloatToBf16(x));
  }
}

// Element `index` in fp32.
inline float KvDecode(KvType type, const std::byte* in, int64_t index, const KvScale& scale) {
  const auto load = [&](auto element) {
    std::memcpy(&element, in + index * static_cast<int64_t>(sizeof element), sizeof element);
    return element;
  };
  const float d = Bf16ToFloat(scale.d);
  if (HasCodes(type)) {
    uint8_t code = 0;
    if (type == KvType::kInt8) {
      code = load(code);
    } else {
      const int bit = KvCodeBit(type, static_cast<int>(index % 16));
      const std::byte byte = in[KvBytes(type, index / 16 * 16) + bit / 8];
      code = static_cast<uint8_t>(std::to_integer<int>(byte) >> bit % 8 & LargestKvCode(type));
    }
    return std::fma(d, static_cast<float>(code), Bf16ToFloat(scale.m));
  }
  switch (type) {
    case KvType::kF32:
      return load(float{});
    case KvType::kF16:
      return HalfToFloat(load(uint16_t{}));
    case KvType::kFp8:
      // As the vector code has it: the bits of E4M3 at their place in fp16 are the value / 256.
      return d * 256 * (Fp8ToFloat(load(uint8_t{})) / 256);
    case KvType::kFp8E5m2:
      return HalfToFloat(static_cast<uint16_t>(load(uint8_t{}) << 8));
    default:
      return Bf16ToFloat(load(uint16_t{}));
  }
}

}  // namespace flotilla::kernels
