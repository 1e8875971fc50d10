// Q5_1: blocks of 32, 24 bytes: d fp16, m fp16, 4 bytes of fifth bits, 16 bytes of nibbles.
// weight = d q + m.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ5_1Format = {
    GgmlType::kQ5_1,
    {.numbers = WeightEncoding::Numbers::kCodes, .low = 0, .high = 31, .has_minimums = true},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 24) {
        row.scales[k / kScaleGroup] = LoadAs<uint16_t>(block);
        row.minimums[k / kScaleGroup] = LoadAs<uint16_t>(block + 2);
        ReadNibbles(block + 8, 0, row.codes + k);
        AddFifthBits(LoadAs<uint32_t>(block + 4), row.codes + k);
      }
    }};

}  // namespace flotilla::model
