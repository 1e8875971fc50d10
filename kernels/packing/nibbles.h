// Nibbles: codes of 4 bits with a scale and a minimum for each 32 (SmallCodes), for Q4_0 and Q4_1.
// 640 bytes: 5 bits per weight.
#pragma once

#include "kernels/packing/small_codes.h"

namespace flotilla::kernels {

struct Nibbles : SmallCodes<4, Scaling::kMinimums> {};

}  // namespace flotilla::kernels
