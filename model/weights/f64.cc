// F64: double precision, rounded to single.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kF64Format = {
    GgmlType::kF64,
    {.numbers = WeightEncoding::Numbers::kFp32},
    [](const std::byte* blocks, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; ++k, blocks += 8) {
        const auto weight = static_cast<float>(LoadAs<double>(blocks));
        std::memcpy(row.numbers + k * sizeof weight, &weight, sizeof weight);
      }
    }};

}  // namespace flotilla::model
