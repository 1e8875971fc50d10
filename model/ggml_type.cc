#include "model/ggml_type.h"

#include <bit>
#include <cstring>

#include "common/types/text.h"

namespace flotilla::model {
namespace {

// Layouts: ggml-common.h. Ids 4, 5, 31-33 and 36-38 are retired.
constexpr GgmlTypeInfo kTypes[] = {
    {GgmlType::kF32, "F32", 1, 4},      {GgmlType::kF16, "F16", 1, 2},
    {GgmlType::kQ4_0, "Q4_0", 32, 18},  {GgmlType::kQ4_1, "Q4_1", 32, 20},
    {GgmlType::kQ5_0, "Q5_0", 32, 22},  {GgmlType::kQ5_1, "Q5_1", 32, 24},
    {GgmlType::kQ8_0, "Q8_0", 32, 34},  {GgmlType{9}, "Q8_1", 32, 36},
    {GgmlType{10}, "Q2_K", 256, 84},    {GgmlType{11}, "Q3_K", 256, 110},
    {GgmlType{12}, "Q4_K", 256, 144},   {GgmlType{13}, "Q5_K", 256, 176},
    {GgmlType{14}, "Q6_K", 256, 210},   {GgmlType{15}, "Q8_K", 256, 292},
    {GgmlType{16}, "IQ2_XXS", 256, 66}, {GgmlType{17}, "IQ2_XS", 256, 74},
    {GgmlType{18}, "IQ3_XXS", 256, 98}, {GgmlType{19}, "IQ1_S", 256, 50},
    {GgmlType{20}, "IQ4_NL", 32, 18},   {GgmlType{21}, "IQ3_S", 256, 110},
    {GgmlType{22}, "IQ2_S", 256, 82},   {GgmlType{23}, "IQ4_XS", 256, 136},
    {GgmlType{24}, "I8", 1, 1},         {GgmlType{25}, "I16", 1, 2},
    {GgmlType{26}, "I32", 1, 4},        {GgmlType{27}, "I64", 1, 8},
    {GgmlType{28}, "F64", 1, 8},        {GgmlType{29}, "IQ1_M", 256, 56},
    {GgmlType::kBF16, "BF16", 1, 2},    {GgmlType{34}, "TQ1_0", 256, 54},
    {GgmlType{35}, "TQ2_0", 256, 66},   {GgmlType{39}, "MXFP4", 32, 17},
    {GgmlType{40}, "NVFP4", 64, 36},    {GgmlType{41}, "Q1_0", 128, 18},
    {GgmlType{42}, "Q2_0", 64, 18},
};

template <typename T>
T Load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float LoadHalf(const std::byte* p) { return HalfToFloat(Load<uint16_t>(p)); }

// The quantised types pack element j in the low and j + 16 in the high nibble
// of byte j; `high_bits` carries bit 4 of element j at bit j.
struct NibbleBlock {
  float scale;
  float offset;  // added after scaling
  int zero;      // subtracted from the code
  uint32_t high_bits;
  const std::byte* nibbles;
};

void DecodeNibbles(const NibbleBlock& block, float* out) {
  for (int j = 0; j < 16; ++j) {
    const int packed = std::to_integer<int>(block.nibbles[j]);
    const int low = (packed & 15) | static_cast<int>((block.high_bits >> j & 1) << 4);
    const int high = (packed >> 4) | static_cast<int>((block.high_bits >> (j + 16) & 1) << 4);
    out[j] = block.scale * static_cast<float>(low - block.zero) + block.offset;
    out[j + 16] = block.scale * static_cast<float>(high - block.zero) + block.offset;
  }
}

// Decodes one block of a supported type.
void DecodeBlock(GgmlType type, const std::byte* p, float* out) {
  switch (type) {
    case GgmlType::kF32:
      *out = Load<float>(p);
      return;
    case GgmlType::kF16:
      *out = LoadHalf(p);
      return;
    case GgmlType::kBF16:
      *out = std::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(p)) << 16);
      return;
    case GgmlType::kQ4_0:
      return DecodeNibbles({LoadHalf(p), 0, 8, 0, p + 2}, out);
    case GgmlType::kQ4_1:
      return DecodeNibbles({LoadHalf(p), LoadHalf(p + 2), 0, 0, p + 4}, out);
    case GgmlType::kQ5_0:
      return DecodeNibbles({LoadHalf(p), 0, 16, Load<uint32_t>(p + 2), p + 6}, out);
    case GgmlType::kQ5_1:
      return DecodeNibbles({LoadHalf(p), LoadHalf(p + 2), 0, Load<uint32_t>(p + 4), p + 8}, out);
    case GgmlType::kQ8_0: {
      const float scale = LoadHalf(p);
      for (int j = 0; j < 32; ++j) out[j] = scale * static_cast<float>(Load<int8_t>(p + 2 + j));
      return;
    }
  }
}

}  // namespace

const GgmlTypeInfo* FindGgmlType(uint32_t id) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == id) return &info;
  }
  return nullptr;
}

std::string_view GgmlTypeName(GgmlType type) {
  const GgmlTypeInfo* info = FindGgmlType(static_cast<uint32_t>(type));
  return info ? info->name : "?";
}

bool IsDecodable(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
    case GgmlType::kQ4_0:
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_0:
    case GgmlType::kQ5_1:
    case GgmlType::kQ8_0:
      return true;
  }
  return false;
}

absl::Status DequantizeRow(GgmlType type, std::span<const std::byte> bytes, std::span<float> out) {
  if (!IsDecodable(type)) {
    return Unimplemented("tensor type ", GgmlTypeName(type), " cannot be decoded");
  }
  const GgmlTypeInfo& info = *FindGgmlType(static_cast<uint32_t>(type));
  if (out.size() % info.block_elements != 0 || bytes.size() % info.block_bytes != 0 ||
      bytes.size() / info.block_bytes != out.size() / info.block_elements) {
    return InvalidArgument(bytes.size(), " bytes of ", info.name, " do not hold ", out.size(),
                           " elements");
  }
  const std::byte* in = bytes.data();
  for (size_t i = 0; i < out.size(); i += info.block_elements, in += info.block_bytes) {
    DecodeBlock(type, in, out.data() + i);
  }
  return absl::OkStatus();
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds past 65504
  if (magnitude < 0x38800000) {                       // below 2^-14: subnormal
    // Adding 0.5 leaves the value in units of 2^-24 in the low mantissa bits,
    // rounded to nearest even by the addition itself.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - ((127 - 15) << 10));
}

}  // namespace flotilla::model
