// BytesOrdered: codes of 8 bits whose groups have their k anywhere (OrderedCodes), for GPTQ with
// act-order. 1,088 bytes, and 128 for each group: 8.75 bits per weight in groups of 128.
#pragma once

#include "kernels/packing/ordered_codes.h"

namespace flotilla::kernels {

struct BytesOrdered : OrderedCodes<8> {};

}  // namespace flotilla::kernels
