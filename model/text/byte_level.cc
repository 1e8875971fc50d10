#include "model/text/byte_level.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <system_error>

#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

// GPT-2's byte-level alphabet, inverted: code point -> byte, -1 elsewhere. Code points of
// printable bytes stand for these bytes; U+0100 and up stand for the other 68 bytes.
constexpr std::array<int16_t, 0x144> kByteOfCodePoint = [] {
  std::array<int16_t, 0x144> table{};
  table.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    table[printable ? byte : next++] = static_cast<int16_t>(byte);
  }
  return table;
}();

// The alphabet: byte -> code point.
constexpr std::array<uint16_t, 256> kCodePointOfByte = [] {
  std::array<uint16_t, 256> table{};
  for (size_t code_point = 0; code_point < kByteOfCodePoint.size(); ++code_point) {
    const int16_t byte = kByteOfCodePoint[code_point];
    if (byte >= 0) table[static_cast<size_t>(byte)] = static_cast<uint16_t>(code_point);
  }
  return table;
}();

}  // namespace

bool AppendByteLevel(std::string_view text, std::string& out) {
  const size_t begin = out.size();
  for (size_t at = 0; at < text.size();) {
    const Utf8Part part = ReadUtf8(text, at);
    if (part.kind != Utf8Part::Kind::kCharacter || part.code_point >= kByteOfCodePoint.size() ||
        kByteOfCodePoint[part.code_point] < 0) {
      out.resize(begin);
      return false;
    }
    out.push_back(static_cast<char>(kByteOfCodePoint[part.code_point]));
    at += part.bytes;
  }
  return true;
}

void AppendInByteLevel(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const uint16_t code_point = kCodePointOfByte[static_cast<uint8_t>(c)];
    if (code_point < 0x80) {
      out.push_back(static_cast<char>(code_point));
    } else {
      out.push_back(static_cast<char>(0xc0 | code_point >> 6));
      out.push_back(static_cast<char>(0x80 | (code_point & 0x3f)));
    }
  }
}

std::optional<uint8_t> ByteOf(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<uint8_t>(value);
}

}  // namespace flotilla::model
