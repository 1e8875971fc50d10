// Strings of JSON: JsonStringReader decodes one byte by byte, and texts are written as such. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flotilla::router {

class JsonStringReader {
 public:
  // Adds a byte behind the opening quote. Appends what it completes to `out`, as UTF-8. True: it is
  // the closing quote. An escape that JSON does not have stands for its character, and half of a
  // surrogate pair for U+FFFD.
  bool Push(char c, std::string& out);

 private:
  void AppendUnit(std::uint32_t unit, std::string& out);

  enum class Place : std::uint8_t { kText, kEscape, kHex };
  Place place_ = Place::kText;
  int digits_ = 0;          // of \u that have come
  std::uint32_t unit_ = 0;  // of them
  std::uint32_t high_ = 0;  // the first half of a surrogate pair; 0: none
};

// Appends the text as it is within the quotes of a JSON string. Each byte stands for itself, so a
// text may be appended in pieces.
void AppendEscaped(std::string_view text, std::string& out);

// The text as a JSON string.
std::string JsonQuoted(std::string_view text);

}  // namespace flotilla::router
