// Iq4: places in the table of IQ4_NL with a scale for each 32 (TableNibbles). 576 bytes: 4.5 bits
// per weight.
#pragma once

#include "kernels/packing/table_nibbles.h"

namespace flotilla::kernels {

struct Iq4 : TableNibbles<WeightEncoding::Values::kIq4, WeightEncoding::Scales::kFp16, 1,
                          /*kWindows=*/false> {};

}  // namespace flotilla::kernels
