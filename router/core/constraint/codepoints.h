// CodepointSet: a set of Unicode characters, and the text that they are taken from. Pure values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::router {

// A set of characters. Surrogates are no characters, so no set has them.
class CodepointSet {
 public:
  struct Range {
    char32_t first, last;  // both inside
    bool operator==(const Range&) const = default;
  };

  CodepointSet() = default;
  // In any order; they may overlap.
  explicit CodepointSet(std::vector<Range> ranges);
  static CodepointSet Of(char32_t character) { return CodepointSet({{character, character}}); }
  static CodepointSet All();

  CodepointSet Union(const CodepointSet& other) const;
  CodepointSet Intersection(const CodepointSet& other) const;
  CodepointSet Complement() const;

  bool empty() const { return ranges_.empty(); }
  // Ascending, with at least one character between two of them.
  const std::vector<Range>& ranges() const { return ranges_; }
  bool Contains(char32_t character) const;
  bool operator==(const CodepointSet&) const = default;

 private:
  std::vector<Range> ranges_;
};

// The characters of a text; nothing if it is not valid UTF-8.
std::optional<std::u32string> DecodeUtf8(std::string_view text);

}  // namespace flotilla::router
