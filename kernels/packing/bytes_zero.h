// BytesZero: codes of 8 bits with a scale and a zero for each 32 (ByteCodes), for GPTQ and
// compressed-tensors. 1,152 bytes: 9 bits per weight.
#pragma once

#include "kernels/packing/byte_codes.h"

namespace flotilla::kernels {

struct BytesZero : ByteCodes<ByteScaling::kZeros> {};

}  // namespace flotilla::kernels
