// What an FFN does between its products, for one number (kernels/ops.h, "activate"). Pure.
#pragma once

#include <cmath>

#include "common/types/activation.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

inline constexpr float kSqrtHalf = 0.70710678118654752f;
inline constexpr float kGeluLinear = -1.5957691216057308f;   // -2 sqrt(2 / pi)
inline constexpr float kGeluCubic = -0.071354816272600242f;  // 0.044715 times that
inline constexpr float kSwigluLimit = 7.0f;
inline constexpr float kSwigluSlope = 1.702f;

// Without an up.
FLOTILLA_HOST_DEVICE inline float ActivatedGate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + Exp(-x));
    case Activation::kGelu:
      return (1.0f + Erf(x * kSqrtHalf)) * (x * 0.5f);
    case Activation::kGeluTanh:
      return x / (1.0f + Exp(x * std::fma(x * x, kGeluCubic, kGeluLinear)));
    case Activation::kRelu:
      return 0.0f > x ? 0.0f : x;
    case Activation::kClippedSwiglu:
      break;
  }
  return x;
}

FLOTILLA_HOST_DEVICE inline float ClippedSwiglu(float gate, float up) {
  const float g = kSwigluLimit < gate ? kSwigluLimit : gate;
  const float low = -kSwigluLimit > up ? -kSwigluLimit : up;
  const float u = kSwigluLimit < low ? kSwigluLimit : low;
  return g / (1.0f + Exp(-kSwigluSlope * g)) * (u + 1.0f);
}

// `up` may be null, but not of kClippedSwiglu.
FLOTILLA_HOST_DEVICE inline float Activated(Activation activation, float gate, const float* up) {
  if (activation == Activation::kClippedSwiglu) return ClippedSwiglu(gate, *up);
  const float activated = ActivatedGate(activation, gate);
  return up == nullptr ? activated : activated * *up;
}

}  // namespace flotilla::kernels
