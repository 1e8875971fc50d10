#include "router/core/tools/tool_constraint.h"

#include "common/types/text.h"
#include "router/core/constraint/ordered_json.h"
#include "router/core/tools/json_string.h"

namespace flotilla::router {
namespace {

std::string Tag(std::string_view begin, std::string_view content, std::string_view end) {
  return Cat(R"({"type":"tag","begin":)", JsonQuoted(begin), R"(,"content":)", content,
             R"(,"end":)", JsonQuoted(end), "}");
}

std::string Sequence(std::string_view first, std::string_view second) {
  return Cat(R"({"type":"sequence","elements":[)", first, ",", second, "]}");
}

std::string Optional(std::string_view content) {
  return Cat(R"({"type":"optional","content":)", content, "}");
}

std::string Calls(const ToolFormat& format, std::span<const CallableTool> tools, bool several) {
  const std::string style =
      format.xml.style.empty() ? "" : Cat(R"(,"style":)", JsonQuoted(format.xml.style));
  std::string tags;
  for (const CallableTool& tool : tools) {
    const std::string_view schema =
        tool.parameters.empty() ? R"({"type":"object"})" : tool.parameters;
    if (!tags.empty()) tags += ',';
    tags += Tag(Cat(format.before_name, tool.name, format.before_arguments),
                Cat(R"({"type":"json_schema","json_schema":)", schema, style, "}"),
                format.after_arguments);
  }
  const std::string calls =
      Cat(R"({"type":"tags_with_separator","tags":[)", tags, R"(],"separator":)",
          JsonQuoted(format.between_calls), R"(,"at_least_one":true,"stop_after_first":)",
          several ? "false" : "true", "}");
  return format.section_begin.empty() ? calls
                                      : Tag(format.section_begin, calls, format.section_end);
}

constexpr std::string_view kAnyText = R"({"type":"any_text"})";

// Thoughts in a channel, up to the header of the next message.
std::string ChannelThoughts(const ReasoningFormat& reasoning) {
  return Optional(
      Tag(reasoning.channel_begin, kAnyText, Cat(reasoning.channel_end, reasoning.next_message)));
}

// Thoughts in front of what follows them.
std::string TaggedThoughts(const ReasoningFormat& reasoning, bool begins_in_reasoning) {
  const std::string_view begin = begins_in_reasoning ? "" : reasoning.begin;
  const std::string thoughts =
      Sequence(Tag(begin, kAnyText, reasoning.end), R"({"type":"regex","pattern":"[ \\n]{0,2}"})");
  return begins_in_reasoning ? thoughts : Optional(thoughts);
}

// Thoughts up to what follows them.
std::string Thoughts(const ReasoningFormat& reasoning, bool begins_in_reasoning) {
  return reasoning.has_channel() ? ChannelThoughts(reasoning)
                                 : TaggedThoughts(reasoning, begins_in_reasoning);
}

// The constraint as a format of a structural tag.
std::string FormOf(const Constraint& constraint) {
  constexpr std::string_view kTag = R"({"type":"structural_tag","format":)";
  const std::string_view text = constraint.text;
  switch (constraint.kind) {
    case Constraint::Kind::kJsonSchema:
      return Cat(R"({"type":"json_schema","json_schema":)", text, "}");
    case Constraint::Kind::kRegex:
      return Cat(R"({"type":"regex","pattern":)", OrderedJson(text).dump(), "}");
    case Constraint::Kind::kGrammar:
      return Cat(R"({"type":"grammar","grammar":)", OrderedJson(text).dump(), "}");
    case Constraint::Kind::kStructuralTag:
    case Constraint::Kind::kNone:
      break;
  }
  return std::string(text.substr(kTag.size(), text.size() - kTag.size() - 1));
}

}  // namespace

std::string ToolConstraint(const ToolFormat& format, std::span<const CallableTool> tools,
                           const ConstraintOptions& options) {
  std::string calls = Calls(format, tools, options.several);
  if (options.reasoning != nullptr) {
    calls = Sequence(Thoughts(*options.reasoning, options.begins_in_reasoning), calls);
  }
  return Cat(R"({"type":"structural_tag","format":)", calls, "}");
}

Constraint FormConstraint(const Constraint& form, std::string_view calls,
                          const ReasoningFormat* reasoning, bool begins_in_reasoning,
                          const std::vector<ControlToken>& tokens) {
  const auto named = [&tokens](const std::string& text) {
    return WithControlTokens(OrderedJson::parse(text), tokens).dump();
  };
  std::string answer = FormOf(form);
  if (reasoning != nullptr && !reasoning->answer_header.empty()) {
    answer = Sequence(
        named(Cat(R"({"type":"const_string","value":)", JsonQuoted(reasoning->answer_header), "}")),
        answer);
  }
  if (!calls.empty()) {
    answer = Cat(R"({"type":"or","elements":[)", answer, ",",
                 named(OrderedJson::parse(calls)["format"].dump()), "]}");
  }
  if (reasoning != nullptr) {
    answer = Sequence(named(Thoughts(*reasoning, begins_in_reasoning)), answer);
  }
  return {Constraint::Kind::kStructuralTag,
          Cat(R"({"type":"structural_tag","format":)", answer, "}")};
}

}  // namespace flotilla::router
