// The formats of weights that can be served. Each is a file of its own in this folder and a line
// in weight_format.cc: it reads blocks of a file as the codes and scales of a panel
// (common/types/weight_panel.h), whose formula then says what a weight means in fp32.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "common/types/weight_panel.h"
#include "model/ggml_type.h"

namespace flotilla::model {

struct WeightFormat {
  GgmlType type;
  WeightEncoding encoding;
  // Reads consecutive blocks as the elements [begin, end) of `row`, which are whole blocks.
  void (*read)(const std::byte* blocks, int begin, int end, WeightRow& row);
};

// All of them.
std::span<const WeightFormat* const> WeightFormats();

// The format of `type`; null if it cannot be decoded.
const WeightFormat* FindWeightFormat(GgmlType type);

// The rest is what formats share.

template <typename T>
T LoadAs(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// The codes of a block of 32, less `zero`: element j is in the low nibble of byte j, and element
// j + 16 in its high nibble.
inline void ReadNibbles(const std::byte* nibbles, int zero, int8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    const int packed = std::to_integer<int>(nibbles[j]);
    codes[j] = static_cast<int8_t>((packed & 15) - zero);
    codes[j + 16] = static_cast<int8_t>((packed >> 4) - zero);
  }
}

// The same with `bytes` bytes, whose nibbles are places in a table of codes. Element j + `bytes` is
// in the high nibble of byte j.
inline void ReadTableNibbles(const std::byte* nibbles, int bytes, const int8_t (&table)[16],
                             int8_t* codes) {
  for (int j = 0; j < bytes; ++j) {
    const int packed = std::to_integer<int>(nibbles[j]);
    codes[j] = table[packed & 15];
    codes[j + bytes] = table[packed >> 4];
  }
}

// The scales and the minimums of a window with one of each, which are fp16 at `d` and `m`. A
// minimum is the negative of what the file has.
inline void ReadSuperScales(const std::byte* d, const std::byte* m, int window, WeightRow& row) {
  for (int group = window; group < window + kPanelWindow; group += kScaleGroup) {
    row.scales[group / kScaleGroup] = LoadAs<uint16_t>(d);
    row.minimums[group / kScaleGroup] = LoadAs<uint16_t>(m) ^ 0x8000u;
  }
}

// The factors of Q4_K and Q5_K, which are those of eight groups of 32: 12 bytes with 6 bits for
// each scale and each minimum. The first four groups have theirs in the lower bits of bytes 0 to 3
// and 4 to 7; of the others bytes 8 to 11 have the lower nibbles, and the upper bits of the first
// eight bytes the rest.
inline void ReadSuperFactors(const std::byte* p, int window, WeightRow& row) {
  const auto byte = [&](int i) { return std::to_integer<int>(p[i]); };
  for (int group = 0; group < 8; ++group) {
    const int i = group % 4;
    const bool late = group >= 4;
    const int scale = late ? (byte(8 + i) & 15) | byte(i) >> 6 << 4 : byte(i) & 63;
    const int minimum = late ? byte(8 + i) >> 4 | byte(4 + i) >> 6 << 4 : byte(4 + i) & 63;
    for (int half = 0; half < 2; ++half) {
      const int at = window / kFactorGroup + group * 2 + half;
      row.factors[at] = static_cast<int8_t>(scale);
      row.minimum_factors[at] = static_cast<int8_t>(minimum);
    }
  }
}

// Adds bit 4 of each code of a block of 32, which is bit j of `bits` for element j.
inline void AddFifthBits(uint32_t bits, int8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<int8_t>(codes[j] + (bits >> j & 1) * 16);
}

}  // namespace flotilla::model
