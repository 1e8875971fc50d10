// Q3_K: blocks of 256, 110 bytes: 32 bytes of third bits, 64 bytes of pairs of bits, 12 bytes of
// factors, d fp16. weight = d factor (q - 4), with a factor for each 16.
//
// Each half of a block has 32 bytes of pairs: byte l has those of the elements l, l + 32, l + 64
// and l + 96, from the lowest on. Bit g of byte l of the third bits is that of element l of group g
// of 32. Factor i has its lower four bits in byte i % 8, in the low nibble for i < 8, and its upper
// two bits in byte 8 + i % 4, from bit i / 4 * 2 on; it is 32 too large.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ3_KFormat = {
    GgmlType::kQ3_K,
    {.numbers = WeightEncoding::Numbers::kCodes, .low = -4, .high = 3, .has_factors = true},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 256, block += 110) {
        const auto byte = [&](int i) { return std::to_integer<int>(block[i]); };
        for (int i = 0; i < 256; ++i) {
          const int l = i % 32;
          const int low = byte(32 + i / 128 * 32 + l) >> i % 128 / 32 * 2 & 3;
          const int third = byte(l) >> i / 32 & 1;
          row.codes[k + i] = static_cast<int8_t>((low | third << 2) - 4);
        }
        for (int i = 0; i < 16; ++i) {
          const int low = byte(96 + i % 8) >> i / 8 * 4 & 15;
          const int high = byte(104 + i % 4) >> i / 4 * 2 & 3;
          row.factors[k / kFactorGroup + i] = static_cast<int8_t>((low | high << 4) - 32);
        }
        for (int group = k; group < k + 256; group += kScaleGroup) {
          row.scales[group / kScaleGroup] = LoadAs<uint16_t>(block + 108);
        }
      }
    }};

}  // namespace flotilla::model
