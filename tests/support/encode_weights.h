// Weights as blocks of a format, for files that tests make.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/ggml_type.h"

namespace flotilla::testing {

// Blocks of `type` that encode `values`, which are whole blocks. BF16 is cut off, and the others
// are rounded. Types without an encoder end the program: there are F32, F16, BF16, Q4_0, Q4_1,
// Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
std::vector<std::byte> EncodeTensor(model::GgmlType type, std::span<const float> values);

}  // namespace flotilla::testing
