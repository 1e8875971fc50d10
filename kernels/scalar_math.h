// The project's own exp, log, tanh, erf and number conversions, one scalar definition each.
// The vector paths evaluate the same operations in the same order on each lane,
// so every instruction path gives the same bits; libm, whose results change with
// its version, is not used at run time. Pure functions.
//
// std::fma is exact by definition; it is one instruction in files compiled with
// -mfma and a correct library call elsewhere.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

#include "kernels/host_device.h"

namespace flotilla::kernels {

FLOTILLA_HOST_DEVICE inline uint32_t FloatBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
FLOTILLA_HOST_DEVICE inline float BitsFloat(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The constants of Exp, Log, Tanh and Erf (Cephes, public domain), used by all paths.
struct MathConstants {
  // Exp: x is clamped to [kExpLow, kExpHigh]; below kExpLow the result is 0.
  static constexpr float kExpLow = -87.0f;  // e^-87 > smallest normal number
  static constexpr float kExpHigh = 88.0f;  // e^88 < largest finite number
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr uint32_t kRoundBits = 0x4B400000;
  static constexpr float kLn2High = 0.693359375f;
  static constexpr float kLn2Low = -2.12194440e-4f;
  static constexpr float kExp[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                    4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  // Log: mantissa in [sqrt(1/2), sqrt(2)).
  static constexpr uint32_t kSqrtHalfBits = 0x3F3504F3;
  static constexpr float kLog[9] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                    -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                    2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  // Tanh: a polynomial in x^2 for |x| below kTanhSmall, Exp above it.
  static constexpr float kTanhSmall = 0.625f;
  static constexpr float kTanh[5] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                                     1.33314422036e-1f, -3.33332819422e-1f};
  // Erf: a polynomial in x^2 for |x| below 1. Above it Exp(-x^2) times a polynomial in 1 / x^2,
  // one for |x| below 2 and one beyond.
  static constexpr float kErf[7] = {
      7.853861353153693e-5f, -8.010193625184903e-4f, 5.188327685732524e-3f, -2.685381193529856e-2f,
      1.128358514861418e-1f, -3.761262582423300e-1f, 1.128379165726710e+0f};
  static constexpr float kErfNear[9] = {
      2.326819970068386e-2f,  -1.387039388740657e-1f, 3.687424674597105e-1f,
      -5.824733027278666e-1f, 6.210004621745983e-1f,  -4.944515323274145e-1f,
      3.404879937665872e-1f,  -2.741127028184656e-1f, 5.638259427386472e-1f};
  static constexpr float kErfFar[8] = {
      -1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503e+0f, 2.921019019210786e+0f,
      -1.015265279202700e+0f, 4.218463358204948e-1f, -2.820767439740514e-1f, 5.641895067754075e-1f};
};

// The coefficients by value: functions for GPUs may read constants, but not the arrays of a class.
template <int n>
struct Coefficients {
  float c[n];
};
template <int n>
constexpr Coefficients<n> CopyOf(const float (&c)[n]) {
  Coefficients<n> copy{};
  for (int i = 0; i < n; ++i) copy.c[i] = c[i];
  return copy;
}

// c[0] x^(n-1) + ... + c[n-1], by fma from the left.
template <const auto& kCoefficients>
FLOTILLA_HOST_DEVICE inline float Polynomial(float x) {
  constexpr auto values = CopyOf(kCoefficients);
  float p = values.c[0];
  for (size_t i = 1; i < std::size(values.c); ++i) p = std::fma(p, x, values.c[i]);
  return p;
}

// e^x within 2 ulp on [-87, 88]; 0 below, e^88 above, NaN for NaN. Exp(0) == 1.
FLOTILLA_HOST_DEVICE inline float Exp(float x) {
  using C = MathConstants;
  const float clamped_low = C::kExpLow > x ? C::kExpLow : x;
  const float c = C::kExpHigh < clamped_low ? C::kExpHigh : clamped_low;
  const float t = std::fma(c, C::kLog2E, C::kRound);
  const float n = t - C::kRound;
  float r = std::fma(n, -C::kLn2High, c);
  r = std::fma(n, -C::kLn2Low, r);
  const float p = std::fma(Polynomial<C::kExp>(r), r * r, r) + 1.0f;
  const float scale = BitsFloat((FloatBits(t) - C::kRoundBits + 127u) << 23);
  return x < C::kExpLow ? 0.0f : p * scale;
}

// Natural logarithm within 2 ulp for normal x > 0. Other arguments are outside
// its contract: callers pass sums of exponentials and uniforms in (0, 1).
FLOTILLA_HOST_DEVICE inline float Log(float x) {
  using C = MathConstants;
  const uint32_t shifted = FloatBits(x) - C::kSqrtHalfBits;
  const float e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  const float f = BitsFloat((shifted & 0x007FFFFFu) + C::kSqrtHalfBits) - 1.0f;
  const float z = f * f;
  float p = Polynomial<C::kLog>(f) * f * z;
  p = std::fma(e, C::kLn2Low, p);
  p = std::fma(-0.5f, z, p);
  return std::fma(e, C::kLn2High, f + p);
}

// Within 3 ulp; NaN for NaN.
FLOTILLA_HOST_DEVICE inline float Tanh(float x) {
  using C = MathConstants;
  const float magnitude = BitsFloat(FloatBits(x) & 0x7FFFFFFFu);
  if (C::kTanhSmall > magnitude) {
    const float square = x * x;
    return std::fma(Polynomial<C::kTanh>(square) * square, x, x);
  }
  const float far = 1.0f - 2.0f / (Exp(magnitude + magnitude) + 1.0f);
  return BitsFloat(FloatBits(far) | (FloatBits(x) & 0x80000000u));
}

// The error function within 4 ulp; NaN for NaN.
FLOTILLA_HOST_DEVICE inline float Erf(float x) {
  using C = MathConstants;
  const float magnitude = BitsFloat(FloatBits(x) & 0x7FFFFFFFu);
  const float square = x * x;
  if (1.0f > magnitude) return x * Polynomial<C::kErf>(square);
  const float q = 1.0f / magnitude;
  const float y = q * q;
  const float p = 2.0f > magnitude ? Polynomial<C::kErfNear>(y) : Polynomial<C::kErfFar>(y);
  const float far = 1.0f - Exp(-square) * q * p;
  return BitsFloat(FloatBits(far) | (FloatBits(x) & 0x80000000u));
}

// bf16 <-> fp32; to bf16 rounds to nearest even, NaN stays a (quiet) NaN.
FLOTILLA_HOST_DEVICE inline float Bf16ToFloat(uint16_t x) {
  return BitsFloat(static_cast<uint32_t>(x) << 16);
}
FLOTILLA_HOST_DEVICE inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = FloatBits(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE half to fp32, exact.
FLOTILLA_HOST_DEVICE inline float HalfToFloat(uint16_t h) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
#endif
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 0x3FFu;
  if (exponent == 31) return BitsFloat(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return BitsFloat(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return BitsFloat(sign | FloatBits(subnormal));
}

// fp32 to the nearest IEEE half, ties to even; NaN stays one.
FLOTILLA_HOST_DEVICE inline uint16_t FloatToHalf(float x) {
  const uint32_t bits = FloatBits(x), size = bits & 0x7FFFFFFFu;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  // Of a NaN the upper bits stay, as instructions have it.
  if (size > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | (size >> 13 & 0x1FFu));
  if (size >= 0x477FF000u) return sign | 0x7C00u;  // rounds past 65504
  if (size < 0x38800000u) {                        // below 2^-14: subnormal
    // The addition rounds to units of 2^-24, which are then in the lowest bits.
    return static_cast<uint16_t>(sign | (FloatBits(BitsFloat(size) + 0.5f) - 0x3F000000u));
  }
  const uint32_t rounded = size + 0xFFFu + (size >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

}  // namespace flotilla::kernels
