#include "router/core/constraint/schema_document.h"

#include <charconv>
#include <cstdint>

#include "common/types/text.h"
#include "router/core/constraint/codepoints.h"

namespace flotilla::router {
namespace {

// The text of a URI fragment without its %-escapes; false if one of them is not complete.
bool Unescape(std::string_view text, std::string& plain) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    unsigned code = 0;
    if (i + 2 >= text.size()) return false;
    const auto [end, error] = std::from_chars(&text[i + 1], &text[i + 1] + 2, code, 16);
    if (error != std::errc() || end != &text[i + 1] + 2) return false;
    plain += static_cast<char>(code);
    i += 2;
  }
  return true;
}

// One step of a JSON pointer, with "~1" for '/' and "~0" for '~'.
const OrderedJson* Step(const OrderedJson& value, std::string_view token) {
  std::string name;
  for (std::size_t i = 0; i < token.size(); ++i) {
    const bool escaped = token[i] == '~' && i + 1 < token.size();
    name += escaped ? (token[i + 1] == '1' ? '/' : '~') : token[i];
    if (escaped) ++i;
  }
  if (!value.is_array()) return Find(value, name);
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool is_index = error == std::errc() && end == name.data() + name.size();
  return is_index && index < value.size() ? &value[index] : nullptr;
}

}  // namespace

std::string ShownName(std::string_view text) {
  constexpr std::size_t kMax = 100;
  if (text.size() <= kMax) return std::string(text);
  std::size_t end = kMax;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not within a character
  return Cat(text.substr(0, end), "...");
}

std::string Place::Pointer() const {
  if (parent == nullptr) return ShownName(name);
  if (index != kNoIndex) return Cat(parent->Pointer(), "/", index);
  std::string escaped;
  for (const char c : ShownName(name)) {
    if (c == '~' || c == '/') {
      escaped += c == '~' ? "~0" : "~1";
    } else {
      escaped += c;
    }
  }
  return Cat(parent->Pointer(), "/", escaped);
}

absl::StatusOr<const OrderedJson*> Resolve(const OrderedJson& root, std::string_view reference,
                                           std::size_t* names) {
  std::string pointer;
  if (!reference.starts_with('#') || !Unescape(reference.substr(1), pointer) ||
      (!pointer.empty() && pointer[0] != '/')) {
    return InvalidArgument("is '", ShownName(reference),
                           "'; only references within the schema are supported, as \"#/$defs/x\"");
  }
  const OrderedJson* value = &root;
  for (std::size_t begin = 0; begin < pointer.size() && value != nullptr;) {
    const std::size_t end = std::min(pointer.find('/', begin + 1), pointer.size());
    if (names != nullptr) *names += value->size();
    value = Step(*value, std::string_view(pointer).substr(begin + 1, end - begin - 1));
    begin = end;
  }
  if (value != nullptr) return value;
  return InvalidArgument("is '", ShownName(reference), "', which the schema does not have");
}

}  // namespace flotilla::router
