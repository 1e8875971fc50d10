// The structural tags that make a model call a tool.
#include "router/core/tools/tool_constraint.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "router/core/tools/output_parser.h"

namespace flotilla::router {
namespace {

using nlohmann::json;

const ToolFormat& ToolFormatOf(const std::string& name) {
  return *std::find_if(ToolFormats().begin(), ToolFormats().end(),
                       [&](const ToolFormat& format) { return format.name == name; });
}
const ReasoningFormat& Reasoning(const std::string& name) {
  return *std::find_if(ReasoningFormats().begin(), ReasoningFormats().end(),
                       [&](const ReasoningFormat& format) { return format.name == name; });
}

const CallableTool kAdd{"add", R"({"type":"object","properties":{"a":{"type":"integer"}}})"};
const CallableTool kNow{"now", ""};

TEST(ToolConstraint, HasATagPerTool) {
  const CallableTool tools[] = {kAdd, kNow};
  EXPECT_EQ(ToolConstraint(ToolFormatOf("hermes"), tools, {.several = true}),
            R"({"type":"structural_tag","format":{"type":"tags_with_separator","tags":[)"
            R"({"type":"tag","begin":"<tool_call>\n{\"name\": \"add\", \"arguments\": ",)"
            R"("content":{"type":"json_schema","json_schema":)"
            R"({"type":"object","properties":{"a":{"type":"integer"}}}},"end":"}\n</tool_call>"},)"
            R"({"type":"tag","begin":"<tool_call>\n{\"name\": \"now\", \"arguments\": ",)"
            R"("content":{"type":"json_schema","json_schema":{"type":"object"}},)"
            R"("end":"}\n</tool_call>"}],"separator":"\n","at_least_one":true,)"
            R"("stop_after_first":false}})");
}

TEST(ToolConstraint, SectionsAndThoughtsAreAround) {
  const CallableTool tools[] = {kNow};
  const json tag = json::parse(
      ToolConstraint(ToolFormatOf("deepseek_v3"), tools,
                     {.reasoning = &Reasoning("think"), .begins_in_reasoning = true}))["format"];
  EXPECT_EQ(tag["type"], "sequence");
  const json& thoughts = tag["elements"][0]["elements"][0];
  EXPECT_EQ(thoughts["begin"], "");
  EXPECT_EQ(thoughts["end"], "</think>");
  const json& section = tag["elements"][1];
  EXPECT_EQ(section["begin"], "<｜tool▁calls▁begin｜>");
  EXPECT_EQ(section["content"]["stop_after_first"], true);
  const json& call = section["content"]["tags"][0];
  EXPECT_EQ(call["begin"], "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n");
  EXPECT_EQ(call["end"], "\n```<｜tool▁call▁end｜>");
  const json optional = json::parse(ToolConstraint(
      ToolFormatOf("hermes"), tools, {.reasoning = &Reasoning("think")}))["format"]["elements"][0];
  EXPECT_EQ(optional["type"], "optional");
  EXPECT_EQ(optional["content"]["elements"][0]["begin"], "<think>");
  const json channel = json::parse(ToolConstraint(
      ToolFormatOf("openai"), tools, {.reasoning = &Reasoning("openai")}))["format"]["elements"][0];
  EXPECT_EQ(channel["content"]["begin"], "<|channel|>analysis<|message|>");
  EXPECT_EQ(channel["content"]["end"], "<|end|><|start|>assistant");
}

TEST(ToolConstraint, AFormComesBehindThoughts) {
  using Kind = Constraint::Kind;
  const auto behind = [](const Constraint& form, const std::string& reasoning, bool begun) {
    const Constraint made = FormConstraint(form, "", &Reasoning(reasoning), begun);
    EXPECT_EQ(made.kind, Kind::kStructuralTag);
    return json::parse(made.text)["format"]["elements"];
  };
  const Constraint schema{Kind::kJsonSchema, R"({"type":"object"})"};
  json parts = behind(schema, "think", true);
  EXPECT_EQ(parts[0]["elements"][0]["begin"], "");
  EXPECT_EQ(parts[0]["elements"][0]["end"], "</think>");
  EXPECT_EQ(parts[1], json({{"type", "json_schema"}, {"json_schema", json::parse(schema.text)}}));
  parts = behind({Kind::kRegex, "\"\\d"}, "mistral", false);
  EXPECT_EQ(parts[0]["type"], "optional");
  EXPECT_EQ(parts[0]["content"]["elements"][0]["begin"], "[THINK]");
  EXPECT_EQ(parts[1], json({{"type", "regex"}, {"pattern", "\"\\d"}}));
  parts = behind({Kind::kGrammar, "root ::= \"a\"\n"}, "think", false);
  EXPECT_EQ(parts[1], json({{"type", "grammar"}, {"grammar", "root ::= \"a\"\n"}}));
  const std::string format = R"({"type":"const_string","value":"a}"})";
  parts = behind({Kind::kStructuralTag, R"({"type":"structural_tag","format":)" + format + "}"},
                 "openai", false);
  EXPECT_EQ(parts[0]["content"]["end"], "<|end|><|start|>assistant");
  EXPECT_EQ(parts[1]["elements"][0]["value"], "<|channel|>final<|message|>");
  EXPECT_EQ(parts[1]["elements"][1], json::parse(format));
}

TEST(ToolConstraint, CallsMayComeInPlaceOfAForm) {
  const Constraint schema{Constraint::Kind::kJsonSchema, R"({"type":"object"})"};
  const json form = {{"type", "json_schema"}, {"json_schema", json::parse(schema.text)}};
  const CallableTool tools[] = {kAdd, kNow};
  const auto calls = [&](const char* format, bool several) {
    return ToolConstraint(ToolFormatOf(format), tools, {.several = several});
  };
  const auto made = [&](const std::string& tag, const ReasoningFormat* reasoning) {
    return json::parse(FormConstraint(schema, tag, reasoning, false).text)["format"];
  };
  const auto format_of = [](const std::string& tag) { return json::parse(tag)["format"]; };
  json answer = made(calls("hermes", true), nullptr);
  EXPECT_EQ(answer["type"], "or");
  EXPECT_EQ(answer["elements"], json::array({form, format_of(calls("hermes", true))}));
  answer = made(calls("hermes", false), &Reasoning("think"));
  EXPECT_EQ(answer["type"], "sequence");
  EXPECT_EQ(answer["elements"][0]["type"], "optional");
  EXPECT_EQ(answer["elements"][1]["elements"],
            json::array({form, format_of(calls("hermes", false))}));
  // The header of an answer's message belongs to the form; calls have their own.
  answer = made(calls("openai", false), &Reasoning("openai"))["elements"][1];
  EXPECT_EQ(answer["elements"][0]["elements"][0]["value"], "<|channel|>final<|message|>");
  EXPECT_EQ(answer["elements"][0]["elements"][1], form);
  EXPECT_EQ(answer["elements"][1], format_of(calls("openai", false)));
}

TEST(ToolConstraint, ArgumentsMayBeInXml) {
  const CallableTool tools[] = {kAdd};
  EXPECT_EQ(ToolConstraint(ToolFormatOf("qwen3_coder"), tools, {}),
            R"({"type":"structural_tag","format":{"type":"tags_with_separator","tags":[)"
            R"({"type":"tag","begin":"<tool_call>\n<function=add>\n",)"
            R"("content":{"type":"json_schema","json_schema":)"
            R"({"type":"object","properties":{"a":{"type":"integer"}}},"style":"qwen_xml"},)"
            R"("end":"</function>\n</tool_call>"}],"separator":"\n","at_least_one":true,)"
            R"("stop_after_first":true}})");
  const json tag = json::parse(ToolConstraint(ToolFormatOf("glm45"), tools, {}))["format"];
  EXPECT_EQ(tag["tags"][0]["begin"], "<tool_call>add\n");
  EXPECT_EQ(tag["tags"][0]["content"]["style"], "glm_xml");
  EXPECT_EQ(tag["tags"][0]["end"], "</tool_call>");
}

// What a grammar has a model write is read as calls, in each format.
TEST(ToolConstraint, IsWhatTheParserReads) {
  const CallableTool tools[] = {kAdd, kNow};
  for (const ToolFormat& format : ToolFormats()) {
    json tag = json::parse(ToolConstraint(format, tools, {.several = true}))["format"];
    if (tag["type"] == "tag") tag = json(tag["content"]);
    // XGrammar's JSON, and what it writes of the same arguments in the styles of XML.
    std::string arguments = R"({"a": 5})";
    if (format.xml.style == "qwen_xml") arguments = "<parameter=a> \n5</parameter>\n";
    if (format.xml.style == "glm_xml")
      arguments = "<arg_key>a</arg_key> <arg_value>\n5</arg_value>";
    std::string text;
    for (const json& call : tag["tags"]) {
      if (!text.empty()) text += tag["separator"].get<std::string>();
      text += call["begin"].get<std::string>() + arguments + call["end"].get<std::string>();
    }
    text = std::string(format.section_begin) + text + std::string(format.section_end);
    auto types = std::make_shared<ArgumentTypes>();
    for (const CallableTool& tool : tools) types->Add(tool.name, kAdd.parameters);
    const auto parser =
        MakeOutputParser({.tools = &format, .tool_names = {"add", "now"}, .argument_types = types});
    std::vector<OutputEvent> events;
    parser->Push(text, events);
    parser->Finish(events);
    using Kind = OutputEvent::Kind;
    EXPECT_EQ(events, (std::vector<OutputEvent>{{Kind::kCall, "add", 0},
                                                {Kind::kArguments, R"({"a": 5})", 0},
                                                {Kind::kCall, "now", 1},
                                                {Kind::kArguments, R"({"a": 5})", 1}}))
        << format.name << ": " << text;
  }
}

// For tests/golden/make/record_outputs.py: the tag of each format for the tools of a file.
TEST(ToolConstraint, DISABLED_Prints) {
  const char* path = std::getenv("FLOTILLA_TOOLS");
  ASSERT_NE(path, nullptr);
  std::ifstream file(path);
  const json tools = json::parse(file);
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [name, parameters] : tools.items()) texts.emplace_back(name, parameters.dump());
  std::vector<CallableTool> callable;
  for (const auto& [name, parameters] : texts) callable.push_back({name, parameters});
  for (const ToolFormat& format : ToolFormats()) {
    const bool has_channel = format.shape == ToolFormat::Shape::kChannels;
    for (const ReasoningFormat* reasoning : {static_cast<const ReasoningFormat*>(nullptr),
                                             &Reasoning(has_channel ? "openai" : "think")}) {
      const std::string tag =
          ToolConstraint(format, callable, {.several = true, .reasoning = reasoning});
      std::cout << json({{"format", format.name},
                         {"reasoning", reasoning == nullptr ? "" : reasoning->name},
                         {"tag", json::parse(tag)}})
                << std::endl;
    }
  }
}

}  // namespace
}  // namespace flotilla::router
