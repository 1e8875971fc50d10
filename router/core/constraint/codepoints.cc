#include "router/core/constraint/codepoints.h"

#include <algorithm>
#include <utility>

namespace flotilla::router {
namespace {

// The last character, and those on both sides of the surrogates.
constexpr char32_t kLast = 0x10FFFF, kBefore = 0xD7FF, kAfter = 0xE000;

}  // namespace

CodepointSet::CodepointSet(std::vector<Range> ranges) {
  std::vector<Range> clean;
  for (const Range& range : ranges) {
    if (range.first <= kBefore) clean.push_back({range.first, std::min(range.last, kBefore)});
    if (range.last >= kAfter) {
      clean.push_back({std::max(range.first, kAfter), std::min(range.last, kLast)});
    }
  }
  std::sort(clean.begin(), clean.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  for (const Range& range : clean) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

CodepointSet CodepointSet::All() { return CodepointSet({{0, kLast}}); }

CodepointSet CodepointSet::Union(const CodepointSet& other) const {
  std::vector<Range> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CodepointSet(std::move(both));
}

CodepointSet CodepointSet::Intersection(const CodepointSet& other) const {
  CodepointSet both;
  for (auto a = ranges_.begin(), b = other.ranges_.begin();
       a != ranges_.end() && b != other.ranges_.end();) {
    const Range common{std::max(a->first, b->first), std::min(a->last, b->last)};
    if (common.first <= common.last) both.ranges_.push_back(common);
    a->last < b->last ? ++a : ++b;
  }
  return both;
}

CodepointSet CodepointSet::Complement() const {
  std::vector<Range> rest;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (next < range.first) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) rest.push_back({next, kLast});
  return CodepointSet(std::move(rest));
}

bool CodepointSet::Contains(char32_t character) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [character](const Range& range) {
    return range.first <= character && character <= range.last;
  });
}

std::optional<std::u32string> DecodeUtf8(std::string_view text) {
  std::u32string characters;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    const int more = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4) return std::nullopt;
    char32_t character = more == 0 ? lead : lead & (0x3F >> more);
    for (int k = 0; k < more; ++k, ++i) {
      if (i == text.size() || (text[i] & 0xC0) != 0x80) return std::nullopt;
      character = character << 6 | (text[i] & 0x3F);
    }
    constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    const bool surrogate = character > kBefore && character < kAfter;
    if (character < kLeast[more] || character > kLast || surrogate) return std::nullopt;
    characters.push_back(character);
  }
  return characters;
}

}  // namespace flotilla::router
