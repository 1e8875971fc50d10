// Q5_0: blocks of 32, 22 bytes: d fp16, 4 bytes of fifth bits, 16 bytes of nibbles.
// weight = d (q - 16). No packed kind has codes of 5 bits, so panels have the weights in fp32.
#include "model/weights/weight_format.h"

namespace flotilla::model {

extern const WeightFormat kQ5_0Format = {
    GgmlType::kQ5_0, {}, [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 22) {
        ReadNibbles(block + 6, 16, row.codes);
        AddFifthBits(LoadAs<uint32_t>(block + 2), row.codes);
        const float d = HalfToFloat(LoadAs<uint16_t>(block));
        float weights[32];
        for (int j = 0; j < 32; ++j) weights[j] = d * static_cast<float>(row.codes[j]);
        std::memcpy(row.numbers + k * sizeof(float), weights, sizeof weights);
      }
    }};

}  // namespace flotilla::model
