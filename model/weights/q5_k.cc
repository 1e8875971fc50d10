// Q5_K: blocks of 256, 176 bytes: d fp16, m fp16, 12 bytes of factors, 32 bytes of fifth bits, 128
// bytes of nibbles. weight = d factor q - m minimum_factor, with factors for each 32.
//
// Nibbles are as in Q4_K. Bit g of byte l of the fifth bits is that of element l of group g of 32.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ5_KFormat = {
    GgmlType::kQ5_K,
    {.numbers = WeightEncoding::Numbers::kCodes,
     .low = 0,
     .high = 31,
     .has_factors = true,
     .has_minimums = true,
     .has_minimum_factors = true},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 256, block += 176) {
        ReadSuperScales(block, block + 2, k, row);
        ReadSuperFactors(block + 4, k, row);
        for (int i = 0; i < 256; ++i) {
          const int group = i / 32, l = i % 32;
          const int packed = std::to_integer<int>(block[48 + group / 2 * 32 + l]);
          const int fifth = std::to_integer<int>(block[16 + l]) >> group & 1;
          row.codes[k + i] = static_cast<int8_t>((packed >> group % 2 * 4 & 15) | fifth << 4);
        }
      }
    }};

}  // namespace flotilla::model
