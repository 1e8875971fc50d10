// Floats: fp32. 4,096 bytes: 32 bits per weight.
#pragma once

#include "kernels/packing/numbers.h"

namespace flotilla::kernels {

struct Floats : PlainNumbers<Floats, float, WeightEncoding::Numbers::kFp32> {
  static FLOTILLA_INLINE float Widen(float number) { return number; }

  template <class S>
  static FLOTILLA_INLINE typename S::F Load(const std::byte* weights, int i) {
    return S::Load(reinterpret_cast<const float*>(weights) + i);
  }
};

}  // namespace flotilla::kernels
