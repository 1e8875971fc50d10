#include "router/utf8.h"

#include <cstdint>

#include "model/text/utf8.h"

namespace flotilla::router {

bool IsValidUtf8(std::string_view text) {
  return model::FindInvalidUtf8(text) == std::string_view::npos;
}

std::string RepairUtf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const model::Utf8Part part = model::ReadUtf8(text, at);
    repaired.append(part.kind == model::Utf8Part::Kind::kCharacter ? text.substr(at, part.bytes)
                                                                   : model::kReplacementCharacter);
    at += part.bytes;
  }
  return repaired;
}

std::size_t Utf8Length(std::string_view text) {
  std::size_t count = 0;
  for (char c : text) count += (static_cast<std::uint8_t>(c) & 0xc0) != 0x80;
  return count;
}

}  // namespace flotilla::router
