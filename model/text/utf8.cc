#include "model/text/utf8.h"

#include <cstring>

namespace flotilla::model {

Utf8Part ReadUtf8BeyondAscii(std::string_view text, size_t at) {
  using Kind = Utf8Part::Kind;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0xc2 || lead > 0xf4) return {Kind::kInvalid, 1, 0};
  const uint8_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values past U+10FFFF.
  // Later bytes may be any continuation byte.
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  uint32_t code_point = lead & (0x7f >> length);
  for (uint8_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {Kind::kIncomplete, i, 0};
    const uint8_t next = byte(i);
    if (next < (i == 1 ? low : 0x80) || next > (i == 1 ? high : 0xbf)) {
      return {Kind::kInvalid, i, 0};
    }
    code_point = code_point << 6 | (next & 0x3f);
  }
  return {Kind::kCharacter, length, code_point};
}

void AppendUtf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
            static_cast<char>(0x80 | (c & 63))};
  } else {
    out += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
            static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

size_t FindInvalidUtf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  for (size_t at = 0; at < text.size();) {
    uint64_t word;
    if (text.size() - at >= sizeof word) {  // eight ASCII bytes at a time
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & kHighBits) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Part part = ReadUtf8(text, at);
    if (part.kind != Utf8Part::Kind::kCharacter) return at;
    at += part.bytes;
  }
  return std::string_view::npos;
}

}  // namespace flotilla::model
