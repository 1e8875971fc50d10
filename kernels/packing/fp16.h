// Fp16: fp16. 2,048 bytes: 16 bits per weight.
#pragma once

#include "kernels/packing/numbers.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct Fp16 : PlainNumbers<Fp16, uint16_t, WeightEncoding::Numbers::kFp16> {
  static FLOTILLA_INLINE float Widen(uint16_t number) { return HalfToFloat(number); }

  template <class S>
  static FLOTILLA_INLINE typename S::F Load(const std::byte* weights, int i) {
    return S::LoadHalf(weights + i * 2);
  }
};

}  // namespace flotilla::kernels
