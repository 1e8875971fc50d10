// BF16: the upper half of single precision.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kBf16Format = {
    GgmlType::kBF16,
    {.numbers = WeightEncoding::Numbers::kBf16},
    [](const std::byte* blocks, int begin, int end, WeightRow& row) {
      std::memcpy(row.numbers + begin * 2, blocks, (end - begin) * 2);
    }};

}  // namespace flotilla::model
