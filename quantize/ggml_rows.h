// Encodes rows of weights as ggml's blocks. Pure functions: any thread, no allocation.
//
// Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 are the bytes of the package gguf (gguf.quants.quantize), which
// are those of ggml's reference. Q4_K and Q6_K are those of k_quants.h, and F16 is the nearest
// number.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "model/ggml_type.h"

namespace flotilla::quantize {

// Writes whole blocks of `type`, one of those above, to `bytes`, which hold exactly the blocks of
// `weights`. INVALID_ARGUMENT: a weight is infinite or no number, or weights are too large for
// scales in fp16.
absl::Status EncodeRow(model::GgmlType type, std::span<const float> weights,
                       std::span<std::byte> bytes);

}  // namespace flotilla::quantize
