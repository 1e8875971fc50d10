// How much white space of JSON an answer ends with.
//
// JSON allows any amount between its parts, and models at high temperatures write it without end.
// So masks leave out the tokens that begin with white space once there is enough of it. The value
// depends on the text alone. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace flotilla::worker {

// The bytes of " \t\n\r" that may stand between two parts of JSON, before a token adds no more:
// eight levels of four spaces.
inline constexpr std::uint8_t kEnoughJsonSpace = 32;

constexpr bool IsJsonSpace(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

// The bytes of white space at the end of an answer, counted up to kEnoughJsonSpace, after `text`
// has come to one with `before` of them.
constexpr std::uint8_t JsonSpaceAtEnd(std::uint8_t before, std::string_view text) {
  int bytes = before;
  for (const char byte : text) bytes = IsJsonSpace(byte) ? bytes + 1 : 0;
  return static_cast<std::uint8_t>(std::min<int>(bytes, kEnoughJsonSpace));
}

}  // namespace flotilla::worker
