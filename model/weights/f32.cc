// F32: single precision.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kF32Format = {
    GgmlType::kF32,
    {.numbers = WeightEncoding::Numbers::kFp32},
    [](const std::byte* blocks, int begin, int end, WeightRow& row) {
      std::memcpy(row.numbers + begin * 4, blocks, (end - begin) * 4);
    }};

}  // namespace flotilla::model
