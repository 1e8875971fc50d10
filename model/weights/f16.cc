// F16: IEEE half precision.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kF16Format = {
    GgmlType::kF16,
    {.numbers = WeightEncoding::Numbers::kFp16},
    [](const std::byte* blocks, int begin, int end, WeightRow& row) {
      std::memcpy(row.numbers + begin * 2, blocks, (end - begin) * 2);
    }};

}  // namespace flotilla::model
