// Nvfp4: FP4 with an fp16 scale for each 16 (TableNibbles). 640 bytes: 5 bits per weight.
#pragma once

#include "kernels/packing/table_nibbles.h"

namespace flotilla::kernels {

struct Nvfp4 : TableNibbles<WeightEncoding::Values::kFp4, WeightEncoding::Scales::kFp16, 2,
                            /*kWindows=*/false> {};

}  // namespace flotilla::kernels
