// JsonStringReader: decodes a JSON string byte by byte. Pure.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace flotilla::router
