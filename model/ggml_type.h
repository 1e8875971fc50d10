// The element types of GGUF tensors: their ids, names and block sizes, and the
// obvious fp32 decoding of the ones that flotilla can read.
//
// Pure functions over bytes: any thread, no allocation. The decoders here are
// the definition of what a weight means; kernels are tested against them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace flotilla::model {

// Values are the ids in the file. Only types that code names are listed; the
// table behind FindGgmlType knows every id in use.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kBF16 = 30,
};

// How a type is stored: rows are whole blocks of `block_elements` elements,
// each block `block_bytes` long.
struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;  // as ggml spells it, e.g. "Q4_1"
  uint32_t block_elements;
  uint32_t block_bytes;
};

// The row of the type table with this id; null for retired and unknown ids.
const GgmlTypeInfo* FindGgmlType(uint32_t id);

// The name of `type`, or "?" for an id outside the table.
std::string_view GgmlTypeName(GgmlType type);

// Whether DequantizeRow decodes `type`.
bool IsDecodable(GgmlType type);

// Decodes whole blocks. `bytes` must hold exactly the blocks of `out.size()`
// elements. InvalidArgument if the sizes disagree, Unimplemented (naming the
// type) for types other than those of GgmlType.
absl::Status DequantizeRow(GgmlType type, std::span<const std::byte> bytes, std::span<float> out);

// IEEE binary16 bits to float, exact (subnormals, infinities and NaN included).
float HalfToFloat(uint16_t half);

// The nearest IEEE binary16 bits, ties to even.
uint16_t FloatToHalf(float value);

}  // namespace flotilla::model
