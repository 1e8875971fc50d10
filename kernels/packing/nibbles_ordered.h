// NibblesOrdered: codes of 4 bits whose groups have their k anywhere (OrderedCodes), for GPTQ with
// act-order. 576 bytes, and 128 for each group: 4.75 bits per weight in groups of 128.
#pragma once

#include "kernels/packing/ordered_codes.h"

namespace flotilla::kernels {

struct NibblesOrdered : OrderedCodes<4> {};

}  // namespace flotilla::kernels
