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

// Adds bit 4 of each code of a block of 32, which is bit j of `bits` for element j.
inline void AddFifthBits(uint32_t bits, int8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<int8_t>(codes[j] + (bits >> j & 1) * 16);
}

}  // namespace flotilla::model
