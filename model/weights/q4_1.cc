// Q4_1: blocks of 32, 20 bytes: d fp16, m fp16, 16 bytes of nibbles. weight = d q + m.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ4_1Format = {
    GgmlType::kQ4_1,
    {.numbers = WeightEncoding::Numbers::kCodes, .low = 0, .high = 15, .has_minimums = true},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 20) {
        row.scales[k / kScaleGroup] = LoadAs<uint16_t>(block);
        row.minimums[k / kScaleGroup] = LoadAs<uint16_t>(block + 2);
        ReadNibbles(block + 4, 0, row.codes + k);
      }
    }};

}  // namespace flotilla::model
