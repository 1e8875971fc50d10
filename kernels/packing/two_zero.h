// TwoZero: codes of 2 bits with a scale, fp16 or bf16, and a zero for each 32 (LowZero), for GPTQ
// and compressed-tensors. 384 bytes: 3 bits per weight.
#pragma once

#include "kernels/packing/low_zero.h"

namespace flotilla::kernels {

struct TwoZero : LowZero<TwoBitLanes, 2> {};

}  // namespace flotilla::kernels
