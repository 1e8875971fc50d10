#include "router/core/tools/call_reader.h"

#include <algorithm>
#include <cstddef>

#include "router/core/tools/json_call_reader.h"
#include "router/core/tools/xml_call_reader.h"

namespace flotilla::router {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::size_t kMaxNameBytes = 128;

}  // namespace

bool IsSpace(char c) { return kSpaces.find(c) != kSpaces.npos; }

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         name.find_first_of(" \t\r\n\"<>[]{}`|") == name.npos;
}

std::string_view Trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

bool CallReader::Commit(std::string_view name, std::vector<OutputEvent>& events) {
  const std::vector<std::string>& known = options_.tool_names;
  if (!IsName(name) || begun_ == OutputParser::kMaxCalls) return false;
  if (bare_ && std::find(known.begin(), known.end(), name) == known.end()) return false;
  committed_ = true;
  AddEvent(OutputEvent::Kind::kCall, name, begun_++, events);
  return true;
}

std::unique_ptr<CallReader> MakeCallReader(const OutputOptions& options) {
  if (options.tools != nullptr && options.tools->shape == ToolFormat::Shape::kXml) {
    return std::make_unique<XmlCallReader>(options);
  }
  return std::make_unique<JsonCallReader>(options);
}

}  // namespace flotilla::router
