// JsonSpace: how much white space an answer in JSON ends with, outside of strings.
//
// JSON allows any amount between its parts, and models at high temperatures write it without end.
// So the masks of a schema leave out the tokens that begin with white space once there is enough of
// it. The value depends on the text alone. Pure values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace flotilla::worker {

// The bytes of " \t\n\r" that may stand between two parts of JSON, before a token adds no more:
// eight levels of four spaces.
inline constexpr std::uint16_t kEnoughJsonSpace = 32;

constexpr bool IsJsonSpace(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

struct JsonSpace {
  std::uint16_t bytes = 0;  // of white space at the end, counted up to kEnoughJsonSpace
  bool in_string = false;
  bool escaped = false;  // in a string, behind a backslash

  // Goes on by `text`. What comes before and `text` are the beginning of valid JSON.
  constexpr void Add(std::string_view text) {
    for (const char byte : text) {
      if (in_string) {
        in_string = escaped || byte != '"';
        escaped = !escaped && byte == '\\';
        continue;
      }
      in_string = byte == '"';
      bytes = IsJsonSpace(byte) ? std::min<std::uint16_t>(bytes + 1, kEnoughJsonSpace) : 0;
    }
  }
  constexpr bool enough() const { return bytes >= kEnoughJsonSpace; }
};

}  // namespace flotilla::worker
