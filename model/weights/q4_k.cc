// Q4_K: blocks of 256, 144 bytes: d fp16, m fp16, 12 bytes of factors, 128 bytes of nibbles. weight
// = d factor q - m minimum_factor, with factors for each 32.
//
// Each quarter of a block has 32 bytes of nibbles: the low ones are its first 32 elements, and the
// high ones the others.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ4_KFormat = {
    GgmlType::kQ4_K,
    {.numbers = WeightEncoding::Numbers::kCodes,
     .low = 0,
     .high = 15,
     .has_factors = true,
     .has_minimums = true,
     .has_minimum_factors = true},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 256, block += 144) {
        ReadSuperScales(block, block + 2, k, row);
        ReadSuperFactors(block + 4, k, row);
        for (int quarter = 0; quarter < 4; ++quarter) {
          const std::byte* nibbles = block + 16 + quarter * 32;
          int8_t* codes = row.codes + k + quarter * 64;
          for (int l = 0; l < 32; ++l) {
            codes[l] = static_cast<int8_t>(std::to_integer<int>(nibbles[l]) & 15);
            codes[l + 32] = static_cast<int8_t>(std::to_integer<int>(nibbles[l]) >> 4);
          }
        }
      }
    }};

}  // namespace flotilla::model
