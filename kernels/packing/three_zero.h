// ThreeZero: codes of 3 bits with a scale, fp16 or bf16, and a zero for each 32 (LowZero), for
// GPTQ. 512 bytes: 4 bits per weight.
#pragma once

#include "kernels/packing/low_zero.h"

namespace flotilla::kernels {

struct ThreeZero : LowZero<ThreeBitLanes, 3> {};

}  // namespace flotilla::kernels
