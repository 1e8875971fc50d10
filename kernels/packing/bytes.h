// Bytes: codes of 8 bits with a scale for each 32 (ByteCodes), for Q8_0. 1,088 bytes: 8.5 bits per
// weight.
#pragma once

#include "kernels/packing/byte_codes.h"

namespace flotilla::kernels {

struct Bytes : ByteCodes<ByteScaling::kFp16> {};

}  // namespace flotilla::kernels
