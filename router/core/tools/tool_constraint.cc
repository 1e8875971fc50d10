#include "router/core/tools/tool_constraint.h"

#include "common/types/text.h"

namespace flotilla::router {
namespace {

// The texts of the table have no control character but the line feed.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out += '"';
}

std::string Tag(std::string_view begin, std::string_view content, std::string_view end) {
  return Cat(R"({"type":"tag","begin":)", Quoted(begin), R"(,"content":)", content, R"(,"end":)",
             Quoted(end), "}");
}

std::string Sequence(std::string_view first, std::string_view second) {
  return Cat(R"({"type":"sequence","elements":[)", first, ",", second, "]}");
}

std::string Optional(std::string_view content) {
  return Cat(R"({"type":"optional","content":)", content, "}");
}

std::string Calls(const ToolFormat& format, std::span<const CallableTool> tools, bool several) {
  std::string tags;
  for (const CallableTool& tool : tools) {
    const std::string_view schema =
        tool.parameters.empty() ? R"({"type":"object"})" : tool.parameters;
    if (!tags.empty()) tags += ',';
    tags +=
        Tag(Cat(format.before_name, tool.name, format.before_arguments),
            Cat(R"({"type":"json_schema","json_schema":)", schema, "}"), format.after_arguments);
  }
  const std::string calls =
      Cat(R"({"type":"tags_with_separator","tags":[)", tags, R"(],"separator":)",
          Quoted(format.between_calls), R"(,"at_least_one":true,"stop_after_first":)",
          several ? "false" : "true", "}");
  return format.section_begin.empty() ? calls
                                      : Tag(format.section_begin, calls, format.section_end);
}

// Thoughts up to the begin of the calls.
std::string Thoughts(const ToolFormat& format, const ConstraintOptions& options) {
  constexpr std::string_view kAnyText = R"({"type":"any_text"})";
  if (format.shape == ToolFormat::Shape::kChannels) {
    return Optional(
        Tag("<|channel|>analysis<|message|>", kAnyText, Cat("<|end|>", format.between_calls)));
  }
  const ReasoningFormat& reasoning = *options.reasoning;
  const std::string_view begin = options.begins_in_reasoning ? "" : reasoning.begin;
  const std::string thoughts =
      Sequence(Tag(begin, kAnyText, reasoning.end), R"({"type":"regex","pattern":"[ \\n]{0,2}"})");
  return options.begins_in_reasoning ? thoughts : Optional(thoughts);
}

}  // namespace

std::string ToolConstraint(const ToolFormat& format, std::span<const CallableTool> tools,
                           const ConstraintOptions& options) {
  std::string calls = Calls(format, tools, options.several);
  if (options.reasoning != nullptr) calls = Sequence(Thoughts(format, options), calls);
  return Cat(R"({"type":"structural_tag","format":)", calls, "}");
}

}  // namespace flotilla::router
