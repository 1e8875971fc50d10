// NibblesZero: codes of 4 bits with a scale, fp16 or bf16, and a zero for each 32 (SmallCodes), for
// GPTQ, AWQ and compressed-tensors. 640 bytes: 5 bits per weight.
#pragma once

#include "kernels/packing/small_codes.h"

namespace flotilla::kernels {

struct NibblesZero : SmallCodes<4, Scaling::kZeros> {};

}  // namespace flotilla::kernels
