#include "router/core/tools/json_string.h"

#include <string_view>
#include <utility>

namespace flotilla::router {
namespace {

constexpr std::uint32_t kReplacement = 0xfffd;
// The letters of escapes, and the characters that they mean.
constexpr std::string_view kEscapes = "bfnrt\"\\", kMeant = "\b\f\n\r\t\"\\";

void AppendUtf8(std::uint32_t code, std::string& out) {
  const auto add = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

// The value of a hexadecimal digit, or 16.
std::uint32_t HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<std::uint32_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::uint32_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<std::uint32_t>(c - 'A' + 10);
  return 16;
}

}  // namespace

void JsonStringReader::AppendUnit(std::uint32_t unit, std::string& out) {
  const bool is_high = unit >= 0xd800 && unit < 0xdc00, is_low = unit >= 0xdc00 && unit < 0xe000;
  if (const std::uint32_t high = std::exchange(high_, is_high ? unit : 0); high != 0) {
    if (is_low) return AppendUtf8(0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00), out);
    AppendUtf8(kReplacement, out);
  }
  if (!is_high) AppendUtf8(is_low ? kReplacement : unit, out);
}

bool JsonStringReader::Push(char c, std::string& out) {
  switch (place_) {
    case Place::kHex:
      if (const std::uint32_t digit = HexDigit(c); digit < 16) {
        unit_ = unit_ * 16 + digit;
        if (++digits_ < 4) return false;
        place_ = Place::kText;
        AppendUnit(unit_, out);
        return false;
      }
      AppendUnit(kReplacement, out);
      place_ = Place::kText;
      break;
    case Place::kEscape:
      place_ = Place::kText;
      if (c == 'u') {
        place_ = Place::kHex;
        digits_ = 0;
        unit_ = 0;
        return false;
      }
      if (std::exchange(high_, 0) != 0) AppendUtf8(kReplacement, out);
      if (const auto at = kEscapes.find(c); at != kEscapes.npos) c = kMeant[at];
      out.push_back(c);
      return false;
    case Place::kText:
      break;
  }
  if (c == '\\') {
    place_ = Place::kEscape;
    return false;
  }
  if (std::exchange(high_, 0) != 0) AppendUtf8(kReplacement, out);
  if (c == '"') return true;
  out.push_back(c);
  return false;
}

void AppendEscaped(std::string_view text, std::string& out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (const auto at = kMeant.find(c); at != kMeant.npos) {
      out += {'\\', kEscapes[at]};
    } else if (byte < 0x20) {
      out += "\\u00";
      out += {kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      out.push_back(c);
    }
  }
}

std::string JsonQuoted(std::string_view text) {
  std::string out = "\"";
  AppendEscaped(text, out);
  return out += '"';
}

}  // namespace flotilla::router
