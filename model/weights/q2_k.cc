// Q2_K: blocks of 256, 84 bytes: 16 bytes of factors, 64 bytes of pairs of bits, d fp16, m fp16.
// weight = d factor q - m minimum_factor, with factors for each 16: the low nibble of a byte is
// that of the scale, and the high one that of the minimum.
//
// Each half of a block has 32 bytes of pairs: byte l has those of the elements l, l + 32, l + 64
// and l + 96, from the lowest on.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ2_KFormat = {
    GgmlType::kQ2_K,
    {.numbers = WeightEncoding::Numbers::kCodes,
     .low = 0,
     .high = 3,
     .has_factors = true,
     .has_minimums = true,
     .has_minimum_factors = true},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 256, block += 84) {
        ReadSuperScales(block + 80, block + 82, k, row);
        for (int group = 0; group < 16; ++group) {
          const int factors = std::to_integer<int>(block[group]);
          row.factors[k / kFactorGroup + group] = static_cast<int8_t>(factors & 15);
          row.minimum_factors[k / kFactorGroup + group] = static_cast<int8_t>(factors >> 4);
        }
        for (int i = 0; i < 256; ++i) {
          const int pairs = std::to_integer<int>(block[16 + i / 128 * 32 + i % 32]);
          row.codes[k + i] = static_cast<int8_t>(pairs >> i % 128 / 32 * 2 & 3);
        }
      }
    }};

}  // namespace flotilla::model
