// Bf16: bf16. 2,048 bytes: 16 bits per weight.
#pragma once

#include "kernels/packing/numbers.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct Bf16 : PlainNumbers<Bf16, uint16_t, WeightEncoding::Numbers::kBf16> {
  static FLOTILLA_INLINE float Widen(uint16_t number) { return Bf16ToFloat(number); }

  template <class S>
  static FLOTILLA_INLINE typename S::F Load(const std::byte* weights, int i) {
    return S::LoadBf16(weights + i * 2);
  }
};

}  // namespace flotilla::kernels
