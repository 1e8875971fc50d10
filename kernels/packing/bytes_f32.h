// BytesF32: codes of 8 bits with a bf16 or fp32 scale for each 32 (ByteCodes), for W8A8 and
// LLM.int8. 1,152 bytes: 9 bits per weight.
#pragma once

#include "kernels/packing/byte_codes.h"

namespace flotilla::kernels {

struct BytesF32 : ByteCodes<ByteScaling::kFp32> {};

}  // namespace flotilla::kernels
