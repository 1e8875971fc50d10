// Q8_0: blocks of 32, 34 bytes: d fp16, 32 int8. weight = d q.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ8_0Format = {
    GgmlType::kQ8_0,
    {.numbers = WeightEncoding::Numbers::kCodes, .low = -128, .high = 127},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 34) {
        row.scales[k / kScaleGroup] = LoadAs<uint16_t>(block);
        std::memcpy(row.codes + k, block + 2, 32);
      }
    }};

}  // namespace flotilla::model
