#include "common/obs/printable.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_format.h"

namespace flotilla {
namespace {

// Characters above ASCII that are escaped: Unicode's controls (Cc), separators of lines and
// paragraphs (Zl, Zp), and format characters (Cf), except those that belong to a single script.
struct Range {
  char32_t first, last;
};
constexpr Range kHidden[] = {
    {0x80, 0x9f},        // C1: 9b begins a terminal's command
    {0xad, 0xad},        // soft hyphen
    {0x61c, 0x61c},      // Arabic letter mark
    {0x180e, 0x180e},    // Mongolian vowel separator
    {0x200b, 0x200f},    // of no width, and direction marks
    {0x2028, 0x202e},    // separators, embeddings and overrides
    {0x2060, 0x206f},    // joiners, isolates
    {0xfeff, 0xfeff},    // byte order mark
    {0xfff9, 0xfffb},    // annotations
    {0xe0000, 0xe007f},  // tags
};

bool IsHidden(char32_t c) {
  return std::any_of(std::begin(kHidden), std::end(kHidden),
                     [c](const Range& range) { return range.first <= c && c <= range.last; });
}

// The first character of a text, and its number of bytes. 0 bytes: the text does not begin with
// UTF-8.
struct Decoded {
  char32_t character = 0;
  std::size_t bytes = 0;
};
Decoded Decode(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  const std::size_t bytes = lead < 0x80   ? 1
                            : lead < 0xc2 ? 0
                            : lead < 0xe0 ? 2
                            : lead < 0xf0 ? 3
                            : lead < 0xf5 ? 4
                                          : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  if (bytes == 1) return {lead, 1};
  char32_t character = lead & (0x7f >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return {};
    character = character << 6 | (at(i) & 0x3f);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = character >= 0xd800 && character < 0xe000;
  if (character < kLeast[bytes] || surrogate || character > 0x10ffff) return {};
  return {character, bytes};
}

bool IsControl(char32_t c) { return c < 0x20 || c == 0x7f; }

void AppendControl(char c, std::string* to) {
  switch (c) {
    case '\n':
      *to += "\\n";
      return;
    case '\r':
      *to += "\\r";
      return;
    case '\t':
      *to += "\\t";
      return;
    default:
      absl::StrAppendFormat(to, "\\x%02x", static_cast<unsigned char>(c));
  }
}

}  // namespace

std::string Printable(std::string_view text, bool quoted) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Decoded next = Decode(text);
    const char first = text.front();
    if (next.bytes == 0 || IsControl(next.character)) {
      AppendControl(first, &shown);
    } else if (IsHidden(next.character)) {
      absl::StrAppendFormat(&shown, "\\u{%x}", static_cast<std::uint32_t>(next.character));
    } else if (quoted && (first == '"' || first == '\\')) {
      shown += '\\';
      shown += first;
    } else {
      shown += text.substr(0, next.bytes);
    }
    text.remove_prefix(std::max<std::size_t>(next.bytes, 1));
  }
  return shown;
}

bool IsPrintable(std::string_view text) {
  while (!text.empty()) {
    const Decoded next = Decode(text);
    if (next.bytes == 0 || IsControl(next.character) || IsHidden(next.character)) return false;
    text.remove_prefix(next.bytes);
  }
  return true;
}

}  // namespace flotilla
