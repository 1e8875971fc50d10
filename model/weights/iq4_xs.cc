// IQ4_XS: blocks of 256, 136 bytes: d fp16, 2 bytes with the upper two bits of eight factors, 4
// bytes with their lower four, 128 bytes of nibbles. weight = d (factor - 32) T[q], T being
// kIq4Values, with a factor for each 32.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kIQ4_XSFormat = {
    GgmlType::kIQ4_XS,
    {.numbers = WeightEncoding::Numbers::kCodes,
     .values = WeightEncoding::Values::kIq4,
     .low = -127,
     .high = 113,
     .has_factors = true},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 256, block += 136) {
        const int high = LoadAs<uint16_t>(block + 2);
        for (int group = 0; group < 8; ++group) {
          const int low = std::to_integer<int>(block[4 + group / 2]) >> group % 2 * 4 & 15;
          const auto factor = static_cast<int8_t>((low | (high >> group * 2 & 3) << 4) - 32);
          row.scales[k / kScaleGroup + group] = LoadAs<uint16_t>(block);
          row.factors[k / kFactorGroup + group * 2] = factor;
          row.factors[k / kFactorGroup + group * 2 + 1] = factor;
          ReadTableNibbles(block + 8 + group * 16, 16, kIq4Values, row.codes + k + group * 32);
        }
      }
    }};

}  // namespace flotilla::model
