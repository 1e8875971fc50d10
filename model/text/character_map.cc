#include "model/text/character_map.h"

#include <algorithm>
#include <cstddef>

#include "common/types/text.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

// A unit of Darts-clone: bits 0 to 7 and 31 are its label, bit 8 says that it has a leaf, and the
// bits from 10 on are its offset, by 256 if bit 9 is set. A leaf has bit 31, and the rest is a
// value.
constexpr uint32_t LabelOf(uint32_t unit) { return unit & (1u << 31 | 0xff); }
constexpr bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
constexpr uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }
constexpr uint32_t ValueOf(uint32_t unit) { return unit & ~(1u << 31); }

// A file may have an array that goes on forever. The texts that published maps replace are shorter.
constexpr size_t kLongestMatch = 256;

uint32_t ReadU32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i > 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[at + i - 1]);
  return value;
}

}  // namespace

absl::StatusOr<CharacterMap> CharacterMap::Create(std::string_view bytes) {
  if (bytes.size() < 4) {
    return InvalidArgument("precompiled_charsmap has ", bytes.size(), " bytes, not at least 4");
  }
  const uint32_t size = ReadU32(bytes, 0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
    return InvalidArgument("precompiled_charsmap has an array of ", size,
                           " bytes (wanted: a multiple of 4 up to ", bytes.size() - 4, ")");
  }
  CharacterMap map;
  map.units_.reserve(size / 4);
  for (size_t at = 4; at < 4 + size_t{size}; at += 4) map.units_.push_back(ReadU32(bytes, at));
  map.texts_ = bytes.substr(4 + size_t{size});
  if (const size_t bad = FindInvalidUtf8(map.texts_); bad != std::string::npos) {
    return InvalidArgument("precompiled_charsmap has a text that is not UTF-8 at byte ",
                           4 + size_t{size} + bad);
  }
  for (uint32_t c = 1; c < std::size(map.keeps_); ++c) {
    const uint64_t node = OffsetOf(map.units_[0]) ^ c;
    map.keeps_[c] = node >= map.units_.size() || LabelOf(map.units_[node]) != c;
  }
  map.keeps_[0] = true;
  return map;
}

std::optional<CharacterMap::Match> CharacterMap::Find(std::string_view text, bool longest) const {
  std::optional<Match> found;
  uint32_t node = OffsetOf(units_[0]);
  const size_t end_of_walk = std::min(text.size(), kLongestMatch);
  for (size_t at = 0; at < end_of_walk && text[at] != '\0'; ++at) {
    const auto byte = static_cast<uint8_t>(text[at]);
    node ^= byte;
    if (node >= units_.size() || LabelOf(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= OffsetOf(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size()) break;
    const uint32_t value = ValueOf(units_[node]);
    // Neither of the two texts may begin inside a character.
    const auto inside = [](std::string_view all, size_t place) {
      return place < all.size() && (static_cast<uint8_t>(all[place]) & 0xc0) == 0x80;
    };
    if (value > texts_.size() || inside(texts_, value) || inside(text, at + 1)) continue;
    const size_t end = texts_.find('\0', value);
    found = Match{at + 1, std::string_view(texts_).substr(value, end - value)};
    if (!longest) break;
  }
  return found;
}

}  // namespace flotilla::model
