// Q4_0: blocks of 32, 18 bytes: d fp16, 16 bytes of nibbles. weight = d (q - 8).
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ4_0Format = {
    GgmlType::kQ4_0,
    {.numbers = WeightEncoding::Numbers::kCodes, .low = -8, .high = 7},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 18) {
        row.scales[k / kScaleGroup] = LoadAs<uint16_t>(block);
        ReadNibbles(block + 2, 8, row.codes + k);
      }
    }};

}  // namespace flotilla::model
