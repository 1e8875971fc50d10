// IQ4_NL: blocks of 32, 18 bytes: d fp16, 16 bytes of nibbles. weight = d T[q], T being kIq4Values.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kIQ4_NLFormat = {
    GgmlType::kIQ4_NL,
    {.numbers = WeightEncoding::Numbers::kCodes,
     .values = WeightEncoding::Values::kIq4,
     .low = -127,
     .high = 113},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 18) {
        row.scales[k / kScaleGroup] = LoadAs<uint16_t>(block);
        ReadTableNibbles(block + 2, 16, kIq4Values, row.codes + k);
      }
    }};

}  // namespace flotilla::model
