// Takes recorded answers of models apart: each whole, in every two pieces, in random pieces and
// byte by byte. outputs.jsonl and rendered_outputs.jsonl in tests/data have them with what they
// say; tests/golden/make/render_outputs.py has made the second.
#include "router/core/tools/output_parser.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "router/core/tools/tagged_parser.h"

namespace flotilla::router {
namespace {

using nlohmann::json;

struct Message {
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Message&) const = default;
};
void PrintTo(const Message& message, std::ostream* out) {
  *out << "content '" << message.content << "', reasoning '" << message.reasoning << "'";
  for (const auto& [name, arguments] : message.calls)
    *out << ", " << name << "(" << arguments << ")";
}

struct Recorded {
  std::string name, text;
  OutputOptions options;
  Message expected;
};

template <class Format>
const Format* Named(std::span<const Format> formats, const std::string& name) {
  if (name.empty()) return nullptr;
  const auto row = std::find_if(formats.begin(), formats.end(),
                                [&](const Format& format) { return format.name == name; });
  EXPECT_NE(row, formats.end()) << name;
  return &*row;
}

// Of tools by their names.
std::shared_ptr<const ArgumentTypes> TypesOf(const json& parameters) {
  auto types = std::make_shared<ArgumentTypes>();
  for (const auto& [tool, schema] : parameters.items()) types->Add(tool, schema.dump());
  return types;
}

void ReadFrom(const std::string& path, std::vector<Recorded>& all) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << "run the test from the source folder";
  for (std::string line; std::getline(file, line);) {
    const json row = json::parse(line);
    Recorded one{.name = row["name"], .text = row["text"], .options = {}, .expected = {}};
    one.options = {.tools = Named(ToolFormats(), row["format"]),
                   .reasoning = Named(ReasoningFormats(), row["reasoning"]),
                   .begins_in_reasoning = row["inside"],
                   .tool_names = row["tools"],
                   .one_call = row["one_call"]};
    if (row.contains("parameters")) one.options.argument_types = TypesOf(row["parameters"]);
    one.expected.content = row["expected"]["content"];
    one.expected.reasoning = row["expected"]["reasoning"];
    for (const json& call : row["expected"]["calls"])
      one.expected.calls.push_back({call[0], call[1]});
    all.push_back(std::move(one));
  }
}

std::vector<Recorded> ReadAll() {
  std::vector<Recorded> all;
  ReadFrom("tests/data/outputs.jsonl", all);
  ReadFrom("tests/data/rendered_outputs.jsonl", all);
  return all;
}

void Apply(const std::vector<OutputEvent>& events, Message& message) {
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kContent:
        message.content += event.text;
        break;
      case OutputEvent::Kind::kReasoning:
        message.reasoning += event.text;
        break;
      case OutputEvent::Kind::kCall:
        EXPECT_EQ(event.call, message.calls.size());
        message.calls.push_back({event.text, ""});
        break;
      case OutputEvent::Kind::kArguments:
        ASSERT_LT(event.call, message.calls.size());
        message.calls[event.call].second += event.text;
        break;
    }
  }
}

Message Parse(const OutputOptions& options, const std::vector<std::string>& pieces) {
  const auto parser = MakeOutputParser(options);
  Message message;
  for (const std::string& piece : pieces) {
    std::vector<OutputEvent> events;
    parser->Push(piece, events);
    Apply(events, message);
  }
  std::vector<OutputEvent> events;
  parser->Finish(events);
  Apply(events, message);
  return message;
}

TEST(OutputParser, TakesRecordedAnswersApart) {
  const std::vector<Recorded> all = ReadAll();
  EXPECT_GT(all.size(), 270u);
  for (const Recorded& one : all) {
    EXPECT_EQ(Parse(one.options, {one.text}), one.expected) << one.name << ": " << one.text;
  }
}

// SmolLM2's answers under the grammar of each format, some cut off:
// tests/golden/make/record_outputs.py has made them. What they say is not known, but it must be the
// same however they come.
TEST(OutputParser, EverySplitOfWhatAModelWroteGivesTheSame) {
  const json parameters = [] {
    std::ifstream file("tests/data/written_tools.json");
    return json::parse(file);
  }();
  OutputOptions options{.argument_types = TypesOf(parameters)};
  for (const auto& [name, schema] : parameters.items()) options.tool_names.push_back(name);
  std::ifstream file("tests/data/written_outputs.jsonl");
  std::size_t outputs = 0, calls = 0;
  std::mt19937 random(11);
  for (std::string line; std::getline(file, line); ++outputs) {
    const json row = json::parse(line);
    options.tools = Named(ToolFormats(), row["format"]);
    options.reasoning = Named(ReasoningFormats(), row["reasoning"]);
    const std::string text = row["text"];
    const Message whole = Parse(options, {text});
    calls += whole.calls.size();
    for (const auto& [name, arguments] : whole.calls) {
      EXPECT_TRUE(parameters.contains(name)) << name << " in " << text;
      if (row["whole"].get<bool>()) {
        EXPECT_TRUE(json::accept(arguments)) << arguments << " in " << text;
      }
    }
    std::vector<std::string> bytes;
    for (char c : text) bytes.emplace_back(1, c);
    ASSERT_EQ(Parse(options, bytes), whole) << text << " byte by byte";
    const std::size_t step = std::getenv("FLOTILLA_LONG") == nullptr ? 7 : 1;
    for (std::size_t at = random() % step; at <= text.size(); at += step) {
      ASSERT_EQ(Parse(options, {text.substr(0, at), text.substr(at)}), whole)
          << text << " cut at " << at;
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size(); at += pieces.back().size()) {
      pieces.push_back(text.substr(at, 1 + random() % 12));
    }
    ASSERT_EQ(Parse(options, pieces), whole) << text;
  }
  EXPECT_GE(outputs, 400u);
  EXPECT_GE(calls, 250u);
}

TEST(OutputParser, EverySplitGivesTheSame) {
  for (const Recorded& one : ReadAll()) {
    const std::string& text = one.text;
    for (std::size_t at = 0; at <= text.size(); ++at) {
      EXPECT_EQ(Parse(one.options, {text.substr(0, at), text.substr(at)}), one.expected)
          << one.name << " cut at " << at;
    }
    std::vector<std::string> bytes;
    for (char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(Parse(one.options, bytes), one.expected) << one.name << " byte by byte";
    for (std::uint32_t seed = 0; seed < 100; ++seed) {
      std::mt19937 random(seed);
      std::vector<std::string> pieces;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t size = 1 + random() % 12;
        pieces.push_back(text.substr(at, size));
        at += size;
      }
      EXPECT_EQ(Parse(one.options, pieces), one.expected) << one.name << ", seed " << seed;
    }
  }
}

// Parts of recorded answers in any order: the result depends on the text only, and nothing but
// markers and white space is lost.
TEST(OutputParser, MixedUpAnswersGiveTheSame) {
  const std::vector<Recorded> all = ReadAll();
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const Recorded& base = all[random() % all.size()];
    std::string text;
    for (int i = 0; i < 4; ++i) {
      const std::string& other = all[random() % all.size()].text;
      text += other.substr(random() % other.size(), 1 + random() % 60);
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 9;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    OutputOptions options = base.options;
    options.text_or_calls = seed % 2 == 1;
    EXPECT_EQ(Parse(options, pieces), Parse(options, {text})) << "seed " << seed << text;
  }
}

// An answer of a form may have text like a call within.
TEST(OutputParser, TextOfAFormHasNoCalls) {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  const OutputOptions options{.tools = Named(ToolFormats(), "hermes"), .text_or_calls = true};
  for (const std::string& text : {"[\"<to\", \"" + call + "\"]", "\n [1,\n " + call + " ]",
                                  "<tool_call>[2]</tool_call>" + call}) {
    const Message whole = Parse(options, {text});
    EXPECT_EQ(whole.content, text);
    EXPECT_TRUE(whole.calls.empty()) << text;
    for (std::size_t at = 0; at <= text.size(); ++at) {
      EXPECT_EQ(Parse(options, {text.substr(0, at), text.substr(at)}), whole) << text << at;
    }
  }
  EXPECT_EQ(Parse(options, {"\n" + call + "\n" + call}).calls.size(), 2u);
}

// Nor is a form a call because it is JSON with the name of a tool, where calls have no markers.
TEST(OutputParser, AFormIsACallOnlyAsTheGrammarWritesIt) {
  const OutputOptions options{.tools = Named(ToolFormats(), "llama3_json"),
                              .tool_names = {"f", "go"},
                              .text_or_calls = true};
  for (const std::string text :
       {R"({"name":"f","reason":"x"})", R"({"name": "f", "reason": "x"})",
        R"({"name": "fg", "parameters": {}})", R"({"a": {"name": "f"}})", R"({"name": "f")", "{"}) {
    const Message whole = Parse(options, {text});
    EXPECT_EQ(whole.content, text);
    EXPECT_TRUE(whole.calls.empty()) << text;
    for (std::size_t at = 0; at <= text.size(); ++at) {
      EXPECT_EQ(Parse(options, {text.substr(0, at), text.substr(at)}), whole) << text << at;
    }
  }
  const Message call = Parse(options, {R"({"name": "go", "parameters": {"a": 1}})"});
  ASSERT_EQ(call.calls.size(), 1u);
  EXPECT_EQ(call.calls[0], (std::pair<std::string, std::string>("go", R"({"a": 1})")));
  // It comes as soon as it is no call.
  const auto parser = MakeOutputParser(options);
  std::vector<OutputEvent> events;
  parser->Push(R"({"name": "x)", events);
  EXPECT_EQ(events, (std::vector<OutputEvent>{{OutputEvent::Kind::kContent, R"({"name": "x)"}}));
}

TEST(OutputParser, ComesAsSoonAsItIsCertain) {
  const auto parser = MakeOutputParser({.tools = Named(ToolFormats(), "hermes")});
  const auto push = [&](const std::string& text) {
    std::vector<OutputEvent> events;
    parser->Push(text, events);
    return events;
  };
  using Kind = OutputEvent::Kind;
  using Events = std::vector<OutputEvent>;
  EXPECT_EQ(push("Hi <b>"), (Events{{Kind::kContent, "Hi <b>"}}));
  EXPECT_EQ(push(" <tool"), Events());
  EXPECT_EQ(push("_call>{\"name\": \"f\", "), Events());
  EXPECT_EQ(push("\"arguments\": {\"a"), (Events{{Kind::kCall, "f"}, {Kind::kArguments, "{\"a"}}));
  EXPECT_EQ(push("\": 1"), (Events{{Kind::kArguments, "\": 1"}}));
  EXPECT_EQ(push("}}</tool_call>"), (Events{{Kind::kArguments, "}"}}));
}

TEST(OutputParser, HoldsBackABoundedText) {
  const auto parser = MakeOutputParser({.tools = Named(ToolFormats(), "hermes")});
  std::vector<OutputEvent> events;
  const std::string text = "<tool_call>{\"x\": \"" + std::string(100'000, 'a');
  parser->Push(text, events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, text);
}

// Calls that begin within one another and are none, and a call behind them.
TEST(OutputParser, FalseCallsAreReadAgainWithinABound) {
  std::string text;
  while (text.size() < 100'000) text += "<tool_call>{\"a\":[";
  text += "</tool_call>";
  const OutputOptions options{.tools = Named(ToolFormats(), "hermes")};
  Message message;
  std::vector<OutputEvent> events;
  TaggedParser parser(options);
  parser.Push(text + R"(<tool_call>{"name":"f","arguments":{}}</tool_call>)", events);
  parser.Finish(events);
  Apply(events, message);
  EXPECT_EQ(message.content, text);
  EXPECT_EQ(message.calls.size(), 1u);
  EXPECT_GT(parser.read_again(), OutputParser::kMaxHeldBytes);
  EXPECT_LE(parser.read_again(), OutputParser::kMaxReadAgain);
  for (const std::size_t size : {1, 7, 5000}) {
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size(); at += size) pieces.push_back(text.substr(at, size));
    EXPECT_EQ(Parse(options, pieces).content, text) << size;
  }
}

TEST(OutputParser, TextsInXmlComeAsTheyAreWritten) {
  const auto parser =
      MakeOutputParser({.tools = Named(ToolFormats(), "qwen3_coder"),
                        .argument_types = TypesOf(json::parse(R"({"f":{"properties":{
                            "s":{"type":"string"},"i":{"type":"integer"}}}})"))});
  const auto push = [&](const std::string& text) {
    std::vector<OutputEvent> events;
    parser->Push(text, events);
    return events;
  };
  using Kind = OutputEvent::Kind;
  using Events = std::vector<OutputEvent>;
  EXPECT_EQ(push("<tool_call>\n<function=f"), Events());
  EXPECT_EQ(push(">\n<param"), (Events{{Kind::kCall, "f"}}));
  EXPECT_EQ(push("eter=s>\n"), (Events{{Kind::kArguments, "{\"s\": \""}}));
  EXPECT_EQ(push("a \"b\"\n"), (Events{{Kind::kArguments, R"(a \"b\")"}}));
  EXPECT_EQ(push("c\n</par"), (Events{{Kind::kArguments, R"(\nc)"}}));
  EXPECT_EQ(push("ameter>"), (Events{{Kind::kArguments, "\""}}));
  EXPECT_EQ(push("\n<parameter=i>\n1"), (Events{{Kind::kArguments, ", \"i\": "}}));
  EXPECT_EQ(push("2\n"), Events());
  EXPECT_EQ(push("</parameter>"), (Events{{Kind::kArguments, "12"}}));
  EXPECT_EQ(push("\n</function>"), (Events{{Kind::kArguments, "}"}}));
}

TEST(OutputParser, ALongValueInXmlIsAText) {
  const std::string list = "[" + std::string(OutputParser::kMaxValueBytes, ' ') + "\"a\"]";
  const Message message = Parse(
      {.tools = Named(ToolFormats(), "glm45"),
       .tool_names = {"f"},
       .argument_types = TypesOf(json::parse(R"({"f":{"properties":{"l":{"type":"array"}}}})"))},
      {"<tool_call>f\n<arg_key>l</arg_key><arg_value>", list, "</arg_value></tool_call>"});
  ASSERT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(json::parse(message.calls[0].second)["l"], list);
}

TEST(OutputParser, CallsAreBounded) {
  std::string text;
  for (std::uint32_t i = 0; i <= OutputParser::kMaxCalls; ++i) {
    text += "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  }
  const Message message = Parse({.tools = Named(ToolFormats(), "hermes")}, {text});
  EXPECT_EQ(message.calls.size(), OutputParser::kMaxCalls);
  EXPECT_EQ(message.content, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>");
}

TEST(OutputParser, WithoutFormatsThereIsNone) { EXPECT_EQ(MakeOutputParser({}), nullptr); }

TEST(ToolFormat, IsFoundByTheTemplate) {
  const auto tools = [](const char* text) {
    const ToolFormat* format = RecogniseToolFormat(text);
    return format == nullptr ? "" : std::string(format->name);
  };
  EXPECT_EQ(tools("{{ '<tool_call>' }} within <tool_call></tool_call>"), "hermes");
  EXPECT_EQ(tools("<tool_call>\n<function=f>\n</function>\n</tool_call>"), "qwen3_coder");
  EXPECT_EQ(tools("<|start_header_id|> \"parameters\" <function=f>{}</function>"), "");
  EXPECT_EQ(tools("<seed:tool_call><function=f></function></seed:tool_call>"), "");
  EXPECT_EQ(tools("<|start_header_id|> {\"name\": f, \"parameters\": {}}"), "llama3_json");
  EXPECT_EQ(tools("[TOOL_CALLS] ["), "mistral");
  EXPECT_EQ(tools("[TOOL_CALLS]name[ARGS]"), "mistral_v11");
  EXPECT_EQ(tools("<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>"), "glm45");
  EXPECT_EQ(tools("<｜tool▁calls▁begin｜> ```json"), "deepseek_v3");
  EXPECT_EQ(tools("<｜tool▁calls▁begin｜>f<｜tool▁sep｜>{}"), "deepseek_v31");
  EXPECT_EQ(tools("<|start|>assistant<|channel|>final<|message|>"), "openai");
  EXPECT_EQ(tools("<|im_start|>"), "");
  const auto reasoning = [](const char* text) {
    const ReasoningFormat* format = RecogniseReasoning(text);
    return format == nullptr ? "" : std::string(format->name);
  };
  EXPECT_EQ(reasoning("{% if '</think>' in content %}"), "think");
  EXPECT_EQ(reasoning("<|start|>assistant<|channel|>final<|message|>"), "openai");
  EXPECT_EQ(reasoning("<|im_start|>"), "");
}

TEST(ToolFormat, MarkersAreKnownByTheirParts) {
  const ToolFormat& deepseek = *Named(ToolFormats(), "deepseek_v3");
  EXPECT_TRUE(IsMarker("<｜tool▁sep｜>", deepseek));
  EXPECT_TRUE(IsMarker("<|constrain|>", *Named(ToolFormats(), "openai")));
  EXPECT_TRUE(IsMarker("<arg_value>", *Named(ToolFormats(), "glm45")));
  EXPECT_TRUE(IsMarker("<tool_call>", *Named(ToolFormats(), "qwen3_coder")));
  EXPECT_FALSE(IsMarker("<|im_end|>", deepseek));
  EXPECT_FALSE(IsMarker("", deepseek));
  EXPECT_TRUE(IsMarker("</think>", *Named(ReasoningFormats(), "think")));
}

TEST(ToolFormat, IdsDiffer) {
  const ToolFormat* mistral = Named(ToolFormats(), "mistral");
  EXPECT_EQ(ToolCallId(mistral, "a", 0, 0).size(), 9u);
  const std::string id = ToolCallId(nullptr, "a", 0, 0);
  EXPECT_EQ(id.size(), 29u);
  EXPECT_TRUE(id.starts_with("call_"));
  EXPECT_NE(id, ToolCallId(nullptr, "a", 0, 1));
  EXPECT_NE(id, ToolCallId(nullptr, "a", 1, 0));
  EXPECT_NE(id, ToolCallId(nullptr, "b", 0, 0));
}

}  // namespace
}  // namespace flotilla::router
