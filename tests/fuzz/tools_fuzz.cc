// Mutated answers of models that call tools. An input is a line with the formats, flags and the
// sizes of pieces, a line with the JSON schemas of the tools, and the answer. However the answer is
// cut into pieces, it says the same, and the arguments that are read from XML are JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "router/core/tools/argument_types.h"
#include "router/core/tools/output_parser.h"
#include "router/core/tools/tool_format.h"
#include "router/utf8.h"
#include "tests/fuzz/input_limits.h"
#include "tests/fuzz/split_text.h"

namespace {

using namespace flotilla::router;
using Kind = OutputEvent::Kind;

[[noreturn]] void Fail(const char* what, const std::string& which) {
  std::fprintf(stderr, "%s: %s\n", what, which.c_str());
  std::abort();
}

struct Message {
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Message&) const = default;

  std::string Text() const {
    std::string text = "content " + content + "\nreasoning " + reasoning;
    for (const auto& [name, arguments] : calls) text += "\n" + name + "(" + arguments + ")";
    return text;
  }
};

// Adds the events of one push.
void Add(const std::vector<OutputEvent>& events, Message& message) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    const OutputEvent& event = events[i];
    if (event.text.empty()) Fail("an event has no text", message.Text());
    if (i > 0 && event.kind != Kind::kCall && event.kind == events[i - 1].kind &&
        event.call == events[i - 1].call) {
      Fail("two events are one", event.text);
    }
    switch (event.kind) {
      case Kind::kContent:
        message.content += event.text;
        break;
      case Kind::kReasoning:
        message.reasoning += event.text;
        break;
      case Kind::kCall:
        if (event.call != message.calls.size()) Fail("a call has a wrong number", event.text);
        if (message.calls.size() == OutputParser::kMaxCalls) Fail("there are too many calls", "");
        message.calls.push_back({event.text, ""});
        break;
      case Kind::kArguments:
        if (event.call + 1 != message.calls.size()) Fail("another call goes on", event.text);
        message.calls.back().second += event.text;
        break;
    }
  }
}

Message Parse(const OutputOptions& options, const std::vector<std::string_view>& pieces) {
  const std::unique_ptr<OutputParser> parser = MakeOutputParser(options);
  Message message;
  std::vector<OutputEvent> events;
  for (const std::string_view piece : pieces) {
    const bool finished = parser->finished();
    events.clear();
    parser->Push(piece, events);
    if (finished && !events.empty()) Fail("text comes behind the end", events[0].text);
    Add(events, message);
  }
  events.clear();
  parser->Finish(events);
  Add(events, message);
  return message;
}

// The row that a character names; null: none of them.
template <class Format>
const Format* Row(std::span<const Format> formats, std::string_view selectors, std::size_t at) {
  if (at >= selectors.size()) return nullptr;
  const std::size_t row = static_cast<unsigned char>(selectors[at]) % (formats.size() + 1);
  return row == formats.size() ? nullptr : &formats[row];
}

// Reads `{"tool": schema, ...}`. What is no such object is the schema of one tool.
void ReadTools(std::string_view text, OutputOptions& options) {
  auto types = std::make_shared<ArgumentTypes>();
  const nlohmann::json tools = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (tools.is_object()) {
    for (const auto& [name, schema] : tools.items()) {
      types->Add(name, schema.dump());
      options.tool_names.push_back(name);
    }
  } else {
    types->Add("f", text);
    options.tool_names = {"f"};
  }
  options.argument_types = std::move(types);
}

// Behind the ends of all that may be open in XML, each call has an object of JSON.
void CheckArguments(const OutputOptions& options, std::string text) {
  const XmlTags& xml = options.tools->xml;
  for (const std::string_view end :
       {xml.key_end, xml.value_begin, xml.value_end, std::string_view("\n"), xml.body_end,
        std::string_view("\n"), options.tools->end}) {
    text += end;
  }
  const Message message = Parse(options, {text});
  for (const auto& [name, arguments] : message.calls) {
    if (!arguments.starts_with('{') || !nlohmann::json::accept(arguments)) {
      Fail("the arguments are no object", message.Text());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  constexpr std::size_t kMostBytes = 8 << 10;
  std::string_view rest(reinterpret_cast<const char*>(input), size);
  const flotilla::testing::InputLimits limits(size);
  const std::string_view first = flotilla::testing::TakeLine(rest);
  const std::string_view tools = flotilla::testing::TakeLine(rest);
  OutputOptions options{.tools = Row(ToolFormats(), first, 0),
                        .reasoning = Row(ReasoningFormats(), first, 1)};
  if (options.tools == nullptr && options.reasoning == nullptr) return 0;
  const unsigned flags = first.size() > 2 ? static_cast<unsigned char>(first[2]) : 0;
  options.begins_in_reasoning = flags & 1;
  options.one_call = flags & 2;
  ReadTools(tools, options);
  // Repeated, short inputs show what takes more time than the answer has bytes.
  std::string text(rest);
  const bool repeats = (flags & 0x9c) == 0x1c;
  for (unsigned i = 0; repeats && i < 12 && 2 * text.size() <= kMostBytes; ++i) text += text;
  const std::string_view sizes = first.substr(std::min<std::size_t>(first.size(), 3));
  const Message whole = Parse(options, {text});
  const auto check = [&](std::string_view each) {
    const Message pieces = Parse(options, flotilla::testing::Pieces(text, each));
    if (pieces != whole)
      Fail("pieces say something else", pieces.Text() + "\n---\n" + whole.Text());
  };
  check(sizes);
  if (!repeats) check("");
  const bool is_xml = options.tools != nullptr && options.tools->shape == ToolFormat::Shape::kXml;
  if (is_xml && IsValidUtf8(text)) CheckArguments(options, std::move(text));
  return 0;
}
