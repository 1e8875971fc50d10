// The element types of tensors: those of GGUF, with their ids, names and block sizes, and the few
// that only safetensors files have. Those with a file in model/weights/ can be decoded.
//
// Pure functions: any thread, no allocation.
#pragma once

#include <cstdint>
#include <string_view>

namespace flotilla::model {

// Values are the ids in the file; those that are missing are retired.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
  // What follows is in no GGUF file: types of safetensors files.
  kU8 = UINT32_MAX - 3,
  kF8_E4M3 = UINT32_MAX - 2,
  kF8_E8M0 = UINT32_MAX - 1,
  // No type of a file: what Tensor::composite says counts.
  kComposite = UINT32_MAX,
};

// How a type is stored: rows are whole blocks of `block_elements` elements,
// each block `block_bytes` long.
struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;  // as ggml spells it, e.g. "Q4_1"
  uint32_t block_elements;
  uint32_t block_bytes;
};

// The type that has this id in a GGUF file; null for retired and unknown ids.
const GgmlTypeInfo* FindGgmlType(uint32_t id);

// The row of any type of a file.
const GgmlTypeInfo& InfoOf(GgmlType type);

// The name of `type`, or "?" for an id outside the table.
std::string_view GgmlTypeName(GgmlType type);

// IEEE binary16 bits to float, exact (subnormals, infinities and NaN included).
float HalfToFloat(uint16_t half);

// The nearest IEEE binary16 bits, ties to even.
uint16_t FloatToHalf(float value);

}  // namespace flotilla::model
