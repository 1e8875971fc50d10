// Nvfp4F32: FP4 with an fp32 scale for each 16 (TableNibbles), for NVFP4 of compressed-tensors,
// whose scales have a factor of their own. 768 bytes: 6 bits per weight.
#pragma once

#include "kernels/packing/table_nibbles.h"

namespace flotilla::kernels {

struct Nvfp4F32 : TableNibbles<WeightEncoding::Values::kFp4, WeightEncoding::Scales::kFp32, 2,
                               /*kWindows=*/false> {};

}  // namespace flotilla::kernels
