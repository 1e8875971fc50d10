// Quantises the matrices of a float checkpoint while they are loaded (--quantize), without
// calibration: each weight goes to the code nearest to it.
//
//   int8  codes of 8 bits, for 32 weights a scale in fp16: the largest of them / 127
//   int4  codes of 4 bits, for 32 weights a scale and a minimum in fp16, which span them
//   nf4   places in the table of NF4 (Dettmers et al., QLoRA, 2023), for 64 weights a scale in
//         fp32: the largest of them
//   fp8   FP8 (E4M3), for 128 weights a scale in fp32: the largest of them / 448
//
// Groups begin at the multiples of their size in a row, so codes do not depend on how a matrix is
// sharded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"
#include "model/spec.h"

namespace flotilla::model {

enum class LoadQuantization : uint8_t { kNone, kInt8, kInt4, kNf4, kFp8 };

// By the names above, and "none". INVALID_ARGUMENT: another one.
absl::StatusOr<LoadQuantization> ParseLoadQuantization(std::string_view name);

// The names of the matrices that are quantised: those of attention, FFN and experts that are plain
// numbers and whose rows are multiples of 32, and not what the file has transposed.
std::vector<std::string> QuantizableMatrices(const Checkpoint& file, const ModelSpec& spec);

// The checkpoint with the matrices of attention, FFN and experts quantised; head and token vectors,
// routers, MLA's matrices of each head, vectors and what the file has transposed stay as they are.
// So do rows that are no multiple of 32. INVALID_ARGUMENT: there is no matrix to quantise, e.g.
// because the file is quantised already; or the spec cannot be read. The result owns `file`; kNone
// gives `file`.
absl::StatusOr<std::shared_ptr<const Checkpoint>> QuantizeAtLoad(
    std::shared_ptr<const Checkpoint> file, LoadQuantization method);

}  // namespace flotilla::model
