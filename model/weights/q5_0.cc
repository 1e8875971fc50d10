// Q5_0: blocks of 32, 22 bytes: d fp16, 4 bytes of fifth bits, 16 bytes of nibbles.
// weight = d (q - 16).
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ5_0Format = {
    GgmlType::kQ5_0,
    {.numbers = WeightEncoding::Numbers::kCodes, .low = -16, .high = 15},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 22) {
        row.scales[k / kScaleGroup] = LoadAs<uint16_t>(block);
        ReadNibbles(block + 6, 16, row.codes + k);
        AddFifthBits(LoadAs<uint32_t>(block + 2), row.codes + k);
      }
    }};

}  // namespace flotilla::model
