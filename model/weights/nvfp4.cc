// NVFP4: blocks of 64, 36 bytes: 4 scales s (E4M3 without a sign), 32 bytes of nibbles. weight = s
// / 2 T[q], T being kFp4Values, with a scale for each 16.
#include "model/weights/weight_format.h"

namespace flotilla::model {

namespace {

// Half of the number that 4 bits of exponent and 3 of mantissa are, as fp16. 0x7F is zero, as in
// ggml.
uint16_t HalfOfScale(uint32_t bits) {
  const uint32_t exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (bits == 0x7F) return 0;
  // 2^(exponent - 8) (1 + mantissa / 8); fp16 has a bias of 15.
  if (exponent > 0) return static_cast<uint16_t>((exponent + 7) << 10 | mantissa << 7);
  // mantissa 2^-10: the leading bit becomes the implicit one.
  if (mantissa == 0) return 0;
  const uint32_t lead = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
  return static_cast<uint16_t>((5 + lead) << 10 | (mantissa << (10 - lead) & 0x3FFu));
}

}  // namespace

extern const WeightFormat kNVFP4Format = {
    GgmlType::kNVFP4,
    {.numbers = WeightEncoding::Numbers::kCodes,
     .values = WeightEncoding::Values::kFp4,
     .scale_group = kFactorGroup,
     .low = -12,
     .high = 12},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 64, block += 36) {
        for (int group = 0; group < 4; ++group) {
          row.scales[k / kFactorGroup + group] =
              HalfOfScale(std::to_integer<uint32_t>(block[group]));
          ReadTableNibbles(block + 4 + group * 8, 8, kFp4Values, row.codes + k + group * 16);
        }
      }
    }};

}  // namespace flotilla::model
