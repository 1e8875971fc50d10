// MXFP4 (OCP Microscaling Formats): blocks of 32, 17 bytes: an exponent e, 16 bytes of nibbles.
// weight = 2^(e - 128) T[q], T being kFp4Values. The scale is exact in bf16, and in no fp16.
#include "model/weights/weight_format.h"

namespace flotilla::model {

// The bits of the bf16 2^(e - 128), which is the scale of kFp4Values for an exponent e of MXFP4.
static constexpr uint16_t Mxfp4Scale(uint32_t e) {
  return static_cast<uint16_t>(e < 2 ? 0x20u << e : (e - 1) << 7);  // the first two are subnormal
}

extern const WeightFormat kMXFP4Format = {
    GgmlType::kMXFP4,
    {.numbers = WeightEncoding::Numbers::kCodes,
     .values = WeightEncoding::Values::kFp4,
     .scales = WeightEncoding::Scales::kBf16,
     .low = -12,
     .high = 12},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 32, block += 17) {
        row.scales[k / kScaleGroup] = Mxfp4Scale(std::to_integer<uint32_t>(block[0]));
        ReadTableNibbles(block + 1, 16, kFp4Values, row.codes + k);
      }
    }};

}  // namespace flotilla::model
