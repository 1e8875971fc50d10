// NibblesK: codes of 4 bits with a scale and a minimum for each window, and factors for each 32
// (SmallCodes), for Q4_K. 576 bytes, and 128 for each window: 4.625 bits per weight.
#pragma once

#include "kernels/packing/small_codes.h"

namespace flotilla::kernels {

struct NibblesK : SmallCodes<4, Scaling::kWindows> {};

}  // namespace flotilla::kernels
