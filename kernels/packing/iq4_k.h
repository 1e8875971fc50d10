// Iq4K: the same table with a scale for each window and a factor for each 32 (TableNibbles), for
// IQ4_XS. 576 bytes, and 64 for each window: 4.5625 bits per weight.
#pragma once

#include "kernels/packing/table_nibbles.h"

namespace flotilla::kernels {

struct Iq4K : TableNibbles<WeightEncoding::Values::kIq4, WeightEncoding::Scales::kFp16, 1,
                           /*kWindows=*/true> {};

}  // namespace flotilla::kernels
