#include "quantize/ggml_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/types/text.h"
#include "quantize/k_quants.h"

namespace flotilla::quantize {
namespace {

using model::FloatToHalf;
using model::GgmlType;

constexpr size_t kBlock = 32;

// The codes of a block of 32, after its scale and its minimum.
struct Codes {
  uint8_t at[kBlock];
};

// 1 / scale. It is 0 if the scale is, or if it is too small to have one.
float Inverse(float scale) {
  const float inverse = 1 / scale;
  return std::isfinite(inverse) ? inverse : 0;
}

std::byte* PutHalf(std::byte* out, float value) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(out, &half, sizeof half);
  return out + sizeof half;
}

// Codes of 4 bits, or of 5 with the fifth bits first.
void PutCodes(std::byte* out, const Codes& codes, bool five) {
  if (five) {
    uint32_t fifths = 0;
    for (size_t i = 0; i < kBlock; ++i) fifths |= static_cast<uint32_t>(codes.at[i] >> 4) << i;
    std::memcpy(out, &fifths, sizeof fifths);
    out += sizeof fifths;
  }
  for (size_t i = 0; i < kBlock / 2; ++i) {
    out[i] = static_cast<std::byte>((codes.at[i] & 15) | (codes.at[i + kBlock / 2] & 15) << 4);
  }
}

// Q4_0 and Q5_0: the weight of the largest size, the first of them, has the code -`middle`.
float EncodeSigned(const float* x, int middle, std::byte* out) {
  float extreme = x[0];
  for (size_t i = 1; i < kBlock; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float scale = extreme / static_cast<float>(-middle), inverse = Inverse(scale);
  Codes codes;
  for (size_t i = 0; i < kBlock; ++i) {
    const auto code = static_cast<int>(x[i] * inverse + (static_cast<float>(middle) + 0.5f));
    codes.at[i] = static_cast<uint8_t>(std::min(code, 2 * middle - 1));
  }
  PutCodes(PutHalf(out, scale), codes, middle == 16);
  return scale;
}

// Q4_1 and Q5_1: codes up to `most` span the weights.
float EncodeSpan(const float* x, int most, std::byte* out) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const float least = *low, scale = (*high - least) / static_cast<float>(most);
  const float inverse = Inverse(scale);
  Codes codes;
  if (std::isfinite(scale)) {
    for (size_t i = 0; i < kBlock; ++i) {
      const auto code = static_cast<int>((x[i] - least) * inverse + 0.5f);
      codes.at[i] = static_cast<uint8_t>(std::min(code, most));
    }
    PutCodes(PutHalf(PutHalf(out, scale), least), codes, most == 31);
  }
  return std::max(scale, std::fabs(least));
}

// Q8_0: the weight of the largest size has the code 127 or -127. Halves round away from 0.
float EncodeBytes(const float* x, std::byte* out) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale = largest / 127, inverse = Inverse(scale);
  std::byte* const at = PutHalf(out, scale);
  for (size_t i = 0; i < kBlock; ++i) {
    at[i] = static_cast<std::byte>(static_cast<int8_t>(std::round(x[i] * inverse)));
  }
  return scale;
}

// Writes a block. False: its scale or its minimum is too large for fp16.
bool EncodeBlock(GgmlType type, const float* x, std::byte* out) {
  const auto fits = [](float value) { return (FloatToHalf(value) & 0x7c00) != 0x7c00; };
  switch (type) {
    case GgmlType::kF16:
      PutHalf(out, *x);
      return fits(*x);
    case GgmlType::kQ4_0:
      return fits(EncodeSigned(x, 8, out));
    case GgmlType::kQ5_0:
      return fits(EncodeSigned(x, 16, out));
    case GgmlType::kQ4_1:
      return fits(EncodeSpan(x, 15, out));
    case GgmlType::kQ5_1:
      return fits(EncodeSpan(x, 31, out));
    case GgmlType::kQ8_0:
      return fits(EncodeBytes(x, out));
    case GgmlType::kQ4_K:
      return EncodeQ4_K(std::span<const float, kKBlock>(x, kKBlock),
                        std::span<std::byte, 144>(out, 144));
    case GgmlType::kQ6_K:
      return EncodeQ6_K(std::span<const float, kKBlock>(x, kKBlock),
                        std::span<std::byte, 210>(out, 210));
    default:
      return false;
  }
}

}  // namespace

absl::Status EncodeRow(GgmlType type, std::span<const float> weights, std::span<std::byte> bytes) {
  if (!std::ranges::all_of(weights, [](float weight) { return std::isfinite(weight); })) {
    return InvalidArgument("a weight is infinite or no number");
  }
  const model::GgmlTypeInfo& info = model::InfoOf(type);
  std::byte* out = bytes.data();
  for (size_t at = 0; at < weights.size(); at += info.block_elements, out += info.block_bytes) {
    if (!EncodeBlock(type, weights.data() + at, out)) {
      return InvalidArgument("weights are too large for ", info.name, ", whose numbers are fp16");
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::quantize
