// Mxfp4: FP4 with a bf16 scale for each 32 (TableNibbles). 576 bytes: 4.5 bits per weight.
#pragma once

#include "kernels/packing/table_nibbles.h"

namespace flotilla::kernels {

struct Mxfp4 : TableNibbles<WeightEncoding::Values::kFp4, WeightEncoding::Scales::kBf16, 1,
                            /*kWindows=*/false> {};

}  // namespace flotilla::kernels
