// Five: codes of 5 bits with a scale and a minimum for each 32 (SmallCodes), for Q5_0 and Q5_1. 768
// bytes: 6 bits per weight.
#pragma once

#include "kernels/packing/small_codes.h"

namespace flotilla::kernels {

struct Five : SmallCodes<5, Scaling::kMinimums> {};

}  // namespace flotilla::kernels
