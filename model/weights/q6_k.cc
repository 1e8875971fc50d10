// Q6_K: blocks of 256, 210 bytes: 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 int8
// factors, d fp16. weight = d factor (q - 32), with a factor for each 16.
//
// Each half of a block has 64 bytes of nibbles and 32 bytes of pairs. Byte l of the pairs has those
// of the elements l, l + 32, l + 64 and l + 96, from the lowest on. Their nibbles are the low ones
// of bytes l and l + 32, then the high ones.
#include "model/weights/weight_format.h"

namespace flotilla::model {
namespace {

void ReadHalf(const std::byte* nibbles, const std::byte* pairs, int8_t* codes) {
  for (int l = 0; l < 32; ++l) {
    const int high = std::to_integer<int>(pairs[l]);
    const int even = std::to_integer<int>(nibbles[l]), odd = std::to_integer<int>(nibbles[l + 32]);
    codes[l] = static_cast<int8_t>(((even & 15) | (high & 3) << 4) - 32);
    codes[l + 32] = static_cast<int8_t>(((odd & 15) | (high >> 2 & 3) << 4) - 32);
    codes[l + 64] = static_cast<int8_t>((even >> 4 | (high >> 4 & 3) << 4) - 32);
    codes[l + 96] = static_cast<int8_t>((odd >> 4 | (high >> 6) << 4) - 32);
  }
}

}  // namespace

extern const WeightFormat kQ6_KFormat = {
    GgmlType::kQ6_K,
    {.numbers = WeightEncoding::Numbers::kCodes, .low = -32, .high = 31, .has_factors = true},
    [](const std::byte* block, int begin, int end, WeightRow& row) {
      for (int k = begin; k < end; k += 256, block += 210) {
        ReadHalf(block, block + 128, row.codes + k);
        ReadHalf(block + 64, block + 160, row.codes + k + 128);
        std::memcpy(row.factors + k / kFactorGroup, block + 192, 16);
        for (int group = 0; group < 256; group += kScaleGroup) {
          row.scales[(k + group) / kScaleGroup] = LoadAs<uint16_t>(block + 208);
        }
      }
    }};

}  // namespace flotilla::model
