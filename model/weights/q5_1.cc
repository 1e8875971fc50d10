// Q5_1: blocks of 32, 24 bytes: d fp16, m fp16, 4 bytes of fifth bits, 16 bytes of nibbles.
// weight = d q + m. No packed kind has codes of 5 bits, so panels have the weights in fp32.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ5_1Format = {
    GgmlType::kQ5_1, {}, [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 24) {
        ReadNibbles(block + 8, 0, row.codes);
        AddFifthBits(LoadAs<uint32_t>(block + 4), row.codes);
        const float d = HalfToFloat(LoadAs<uint16_t>(block));
        const float m = HalfToFloat(LoadAs<uint16_t>(block + 2));
        float weights[32];
        for (int j = 0; j < 32; ++j) weights[j] = d * static_cast<float>(row.codes[j]) + m;
        std::memcpy(row.numbers + k * sizeof(float), weights, sizeof weights);
      }
    }};

}  // namespace flotilla::model
