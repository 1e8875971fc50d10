// UTF-8 as Unicode defines it (well-formed sequences, table 3-7): no overlong
// forms, no surrogates, nothing past U+10FFFF. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flotilla::model {

// U+FFFD, which replaces bytes that are not UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// The part that begins at one place of a byte string.
struct Utf8Part {
  enum class Kind : uint8_t {
    kCharacter,   // a whole character
    kIncomplete,  // the text ends inside a character that began well
    kInvalid,     // a maximal invalid part: one U+FFFD stands for it
  };
  Kind kind;
  uint8_t bytes;        // length of the part, 1..4
  uint32_t code_point;  // of a character, else 0
};

// The same as ReadUtf8 where the byte at `at` is not ASCII.
Utf8Part ReadUtf8BeyondAscii(std::string_view text, size_t at);
// The part that begins at `at`, which must be less than text.size().
inline Utf8Part ReadUtf8(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) return {Utf8Part::Kind::kCharacter, 1, lead};
  return ReadUtf8BeyondAscii(text, at);
}

// Appends a character, whose code point is none of the surrogates and U+10FFFF at most.
void AppendUtf8(uint32_t code_point, std::string& out);

// Offset of the first byte that is not part of a whole character, or npos.
size_t FindInvalidUtf8(std::string_view text);

}  // namespace flotilla::model
