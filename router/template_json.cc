#include "router/template_json.h"

#include <algorithm>
#include <string>
#include <vector>

namespace flotilla::router {
namespace {

constexpr std::string_view kJsonSpaces = " \t\n\r";

// The offset behind the string whose opening quote is at `at`, or the text's size.
std::size_t BehindString(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at < text.size() ? at + 1 : text.size();
}

// Whether the text, which need not be JSON, keeps the bounds of depth, members and values.
bool IsInBounds(std::string_view text) {
  std::vector<std::size_t> colons;  // of each open container
  std::size_t values = 1;
  for (std::size_t at = 0; at < text.size();) {
    switch (text[at]) {
      case '"':
        at = BehindString(text, at);
        continue;
      case '{':
      case '[':
        if (colons.size() == kMaxTemplateDepth) return false;
        colons.push_back(0);
        ++values;
        break;
      case '}':
      case ']':
        if (!colons.empty()) colons.pop_back();
        break;
      case ':':
        if (!colons.empty() && ++colons.back() > kMaxTemplateMembers) return false;
        break;
      case ',':
        ++values;
        break;
      default:
        break;
    }
    ++at;
  }
  return values <= kMaxTemplateValues;
}

}  // namespace

std::optional<OrderedJson> ParseTemplateJson(std::string_view text) {
  if (!IsInBounds(text)) return std::nullopt;
  OrderedJson value = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

std::string_view MemberText(std::string_view object, std::string_view name) {
  int depth = 0;
  std::size_t begin = std::string_view::npos;  // of the value, once its name was read
  for (std::size_t at = 0; at < object.size();) {
    const char c = object[at];
    const bool ends = depth == 1 && (c == ',' || c == '}');
    if (ends && begin != std::string_view::npos) {
      std::string_view value = object.substr(begin, at - begin);
      value.remove_prefix(std::min(value.find_first_not_of(kJsonSpaces), value.size()));
      value = value.substr(0, value.find_last_not_of(kJsonSpaces) + 1);
      return value == "null" ? std::string_view() : value;
    }
    if (c == '"') {
      const std::size_t end = BehindString(object, at);
      const std::size_t colon = object.find_first_not_of(kJsonSpaces, end);
      const bool is_name = depth == 1 && begin == std::string_view::npos &&
                           colon != std::string_view::npos && object[colon] == ':';
      // A name may be written with escapes.
      if (is_name && OrderedJson::parse(object.substr(at, end - at)) == std::string(name)) {
        begin = colon + 1;
      }
      at = end;
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++at;
  }
  return {};
}

}  // namespace flotilla::router
