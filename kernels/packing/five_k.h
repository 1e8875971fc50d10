// FiveK: codes of 5 bits with a scale and a minimum for each window, and factors for each 32
// (SmallCodes), for Q5_K. 704 bytes, and 128 for each window: 5.625 bits per weight.
#pragma once

#include "kernels/packing/small_codes.h"

namespace flotilla::kernels {

struct FiveK : SmallCodes<5, Scaling::kWindows> {};

}  // namespace flotilla::kernels
