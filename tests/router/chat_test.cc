// Conversations of the HTTP API: what is read of messages, tools and the rest, and what is refused,
// by which name.
#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "router/errors.h"
#include "router/generate_request.h"
#include "router/http/openai_request.h"
#include "router/template_json.h"

namespace flotilla::router {
namespace {

const ModelLimits kChatModel{"m", 1000, 512, /*max_sequences=*/32, /*end_tokens=*/{2}};

absl::StatusOr<Conversation> Read(const std::string& body, const ParseOptions& options = {}) {
  auto parsed = ParseChatCompletion(body, options);
  if (!parsed.ok()) return parsed.status();
  auto valid = Validator(options.limits).Validate(std::move(parsed->prompts[0]), kChatModel);
  if (!valid.ok()) return valid.status();
  return std::get<Conversation>(valid->api().prompt);
}
std::string Chat(const std::string& more) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}])" + more + "}";
}
std::string Messages(const std::string& more) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"},)" + more + "]}";
}
std::string Function(const std::string& members) {
  return R"({"type":"function","function":{)" + members + "}}";
}
std::string Tools(const std::string& list) { return Chat(",\"tools\":[" + list + "]"); }

TEST(Chat, ReadsCallsAndTheirAnswers) {
  const auto chat = Read(Messages(
      R"({"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[)"
      R"({"id":"1","type":"function","index":0,"function":{"name":"f","arguments":"{\"a\": 1}"}},)"
      R"({"id":"2","type":"function","function":{"name":"g","arguments":{"b":2}}}]},)"
      R"({"role":"tool","tool_call_id":"1","name":"f","content":[{"type":"text","text":"x"}]})"));
  ASSERT_TRUE(chat.ok()) << chat.status();
  ASSERT_EQ(chat->turns.size(), 3u);
  const ChatTurn& turn = chat->turns[1];
  EXPECT_EQ(turn.content, "");
  EXPECT_EQ(turn.reasoning_content, "r");
  ASSERT_EQ(turn.tool_calls.size(), 2u);
  EXPECT_EQ(turn.tool_calls[0].id, "1");
  EXPECT_EQ(turn.tool_calls[0].name, "f");
  EXPECT_EQ(turn.tool_calls[0].arguments, R"({"a": 1})");
  EXPECT_EQ(turn.tool_calls[1].arguments, R"({"b":2})");
  EXPECT_EQ(chat->turns[2].role, "tool");
  EXPECT_EQ(chat->turns[2].tool_call_id, "1");
  EXPECT_EQ(chat->turns[2].name, "f");
  EXPECT_EQ(chat->turns[2].content, "x");
}

TEST(Chat, ReadsToolsInTheirOrder) {
  const auto chat = Read(Tools(
      Function(
          R"("description":"d","name":"f","strict":true,"parameters":)"
          R"({"type":"object","properties":{"z":{"type":"string"},"a":{}},"required":["z"]})") +
      "," + Function(R"("name":"g-2_")")));
  ASSERT_TRUE(chat.ok()) << chat.status();
  ASSERT_EQ(chat->tools.size(), 2u);
  EXPECT_EQ(chat->tools[0].description, "d");
  EXPECT_TRUE(chat->tools[0].strict);
  EXPECT_EQ(chat->tools[0].parameters,
            R"({"type":"object","properties":{"z":{"type":"string"},"a":{}},"required":["z"]})");
  EXPECT_EQ(chat->tools[1].parameters, "");
  EXPECT_TRUE(chat->offers_tools());
  EXPECT_TRUE(chat->parallel_tool_calls);
}

TEST(Chat, ReadsWhatTemplatesSee) {
  const auto chat = Read(Chat(R"(,"documents": [ {"title":"t","body":1} ] ,"chat_template_kwargs")"
                              R"(:{"enable_thinking":false,"a":{"z":1,"b":2}})"
                              R"(,"parallel_tool_calls":false,"include_reasoning":false)"));
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->documents, R"([ {"title":"t","body":1} ])");
  EXPECT_EQ(chat->template_kwargs, R"({"enable_thinking":false,"a":{"z":1,"b":2}})");
  EXPECT_FALSE(chat->parallel_tool_calls);
  EXPECT_FALSE(chat->include_reasoning);
  EXPECT_TRUE(chat->split_reasoning);
  EXPECT_TRUE(chat->add_generation_prompt);
  EXPECT_EQ(Read(Chat(R"(,"reasoning_effort":"high")"))->reasoning_effort, "high");
  EXPECT_FALSE(Read(Chat(R"(,"reasoning_format":"none")"))->split_reasoning);
  EXPECT_TRUE(Read(Chat(R"(,"reasoning_format":"deepseek")"))->split_reasoning);
  EXPECT_FALSE(Read(Chat(R"(,"continue_final_message":true)"))->add_generation_prompt);
  EXPECT_FALSE(Read(Chat(R"(,"add_generation_prompt":false)"))->add_generation_prompt);
}

// As the openai package dumps a message of an answer.
TEST(Chat, MembersThatAreNotKnownMayBeNull) {
  const auto chat = [](const std::string& annotations) {
    return Read(R"({"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant",)"
                R"("content":"y","refusal":null,"audio":null,"annotations":)" +
                annotations + R"(},{"role":"user","content":"z"}],"modalities":null})");
  };
  EXPECT_TRUE(chat("null").ok()) << chat("null").status();
  EXPECT_NE(chat("[]").status().message().find("'messages[1].annotations'"), std::string::npos);
}

TEST(Chat, ReadsTheToolChoice) {
  const std::string tools = R"(,"tools":[)" + Function(R"("name":"f")") + "]";
  const auto choice = [&](const std::string& value) {
    return Read(Chat(tools + ",\"tool_choice\":" + value));
  };
  EXPECT_EQ(choice("null")->tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(choice("\"auto\"")->tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(choice("\"none\"")->tool_choice, ToolChoice::kNone);
  EXPECT_FALSE(choice("\"none\"")->offers_tools());
  EXPECT_EQ(choice("\"required\"")->tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(choice(Function(R"("name":"f")"))->tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(choice(Function(R"("name":"f")"))->chosen_tool, "f");
  for (const char* wrong : {"5", "\"all\"", "{}", R"({"type":"function"})"}) {
    EXPECT_TRUE(ErrorField(choice(wrong).status()).starts_with("tool_choice")) << wrong;
  }
  EXPECT_EQ(ErrorField(choice(Function(R"("name":"g")")).status()), "tool_choice");
  EXPECT_EQ(ErrorField(Read(Chat(R"(,"tool_choice":"required")")).status()), "tool_choice");
  EXPECT_TRUE(Read(Chat(R"(,"tool_choice":"auto")")).ok());
  EXPECT_EQ(ErrorCode(choice(R"({"type":"allowed_tools"})").status()), kUnsupportedField);
}

TEST(Chat, RefusesByName) {
  struct Refusal {
    std::string body, field;
    std::string_view code = kInvalidValue;
  };
  const std::string call = R"({"role":"assistant","tool_calls":)";
  for (const Refusal& r : std::vector<Refusal>{
           {Tools("5"), "tools[0]"},
           {Chat(R"(,"tools":{})"), "tools"},
           {Tools(R"({"type":"function"})"), "tools[0].function"},
           {Tools(R"({"type":"custom","custom":{}})"), "tools[0].type", kUnsupportedField},
           {Tools(R"({"type":"function","function":{"name":"f"},"x":1})"), "tools[0].x",
            kUnknownField},
           {Tools(Function(R"("name":"f","x":1)")), "tools[0].function.x", kUnknownField},
           {Tools(Function(R"("description":"f")")), "tools[0].function.name"},
           {Tools(Function(R"("name":"f g")")), "tools"},
           {Tools(Function(R"("name":"")")), "tools"},
           {Tools(Function("\"name\":\"" + std::string(65, 'f') + "\"")), "tools"},
           {Tools(Function(R"("name":"f","parameters":[])")), "tools"},
           {Tools(Function(R"("name":"f")") + "," + Function(R"("name":"f")")), "tools"},
           {Tools(Function("\"name\":\"f\",\"description\":\"" + std::string(300'000, 'x') + "\"")),
            "tools"},
           {Messages(call + "5}"), "messages[1].tool_calls"},
           {Messages(call + "[5]}"), "messages[1].tool_calls"},
           {Messages(call + R"([{"type":"function"}]})"), "messages[1].tool_calls[0].function"},
           {Messages(call + R"([{"type":"custom"}]})"), "messages[1].tool_calls[0].type",
            kUnsupportedField},
           {Messages(call + "[" + Function(R"("name":"f","arguments":5)") + "]}"),
            "messages[1].tool_calls[0].function.arguments"},
           {Messages(call + "[" + Function(R"("name":"")") + "]}"), "messages[1].tool_calls"},
           {Messages(call + "[]}"), "messages[1].content"},
           {Messages(R"({"role":"assistant","content":null})"), "messages[1].content"},
           {Messages(R"({"role":"user","content":"x","tool_calls":[)" + Function(R"("name":"f")") +
                     "]}"),
            "messages[1].tool_calls"},
           {Messages(R"({"role":"user","content":"x","tool_call_id":"1"})"),
            "messages[1].tool_call_id", kUnknownField},
           {Messages(R"({"role":"user","content":"x","reasoning_content":"1"})"),
            "messages[1].reasoning_content", kUnknownField},
           {Messages(R"({"role":"function","content":"x"})"), "messages[1].role",
            kUnsupportedField},
           {Messages(R"({"role":"king","content":"x"})"), "messages[1].role"},
           {Chat(R"(,"documents":{})"), "documents"},
           {Chat(R"(,"documents":["a"])"), "documents"},
           {Chat(R"(,"chat_template_kwargs":[])"), "chat_template_kwargs"},
           {Chat(R"(,"chat_template_kwargs":{"messages":[]})"), "chat_template_kwargs"},
           {Chat(R"(,"chat_template_kwargs":{"bos_token":"x"})"), "chat_template_kwargs"},
           {Chat(R"(,"chat_template_kwargs":{"a":")" + std::string(20'000, 'x') + "\"}"),
            "chat_template_kwargs"},
           {Chat(R"(,"continue_final_message":true,"add_generation_prompt":true)"),
            "continue_final_message"},
           {Chat(R"(,"continue_final_message":1)"), "continue_final_message"},
           {Chat(R"(,"parallel_tool_calls":1)"), "parallel_tool_calls"},
           {Chat(R"(,"reasoning_format":"deepseek-legacy")"), "reasoning_format",
            kUnsupportedField},
       }) {
    const absl::Status status = Read(r.body).status();
    EXPECT_EQ(ErrorField(status), r.field) << r.body.substr(0, 200) << status;
    EXPECT_EQ(ErrorCode(status), r.code) << r.body.substr(0, 200) << status;
  }
}

TEST(Chat, LimitsHoldAtTheirEdge) {
  const auto tools = [](int count) {
    std::string list;
    for (int i = 0; i < count; ++i) {
      list += (i > 0 ? "," : "") + Function("\"name\":\"f" + std::to_string(i) + "\"");
    }
    return Read(Tools(list)).status();
  };
  EXPECT_EQ(tools(128), absl::OkStatus());
  EXPECT_EQ(ErrorField(tools(129)), "tools");
  const auto properties = [](std::size_t count) {
    std::string members;
    for (std::size_t i = 0; i < count; ++i) {
      members += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":{}";
    }
    return Read(Tools(Function("\"name\":\"f\",\"parameters\":{" + members + "}"))).status();
  };
  EXPECT_EQ(properties(kMaxTemplateMembers), absl::OkStatus());
  EXPECT_EQ(ErrorField(properties(kMaxTemplateMembers + 1)), "tools");
}

TEST(OrderedJson, KeepsTheOrderAndTheBounds) {
  const auto value = ParseTemplateJson(R"({"z":1,"a":{"y":[],"b":"}"}})");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->dump(), R"({"z":1,"a":{"y":[],"b":"}"}})");
  for (const char* wrong : {"", "{", "{]", "nul", "\"a", "[1,]", "{\"a\":1}x", "\xff"}) {
    EXPECT_FALSE(ParseTemplateJson(wrong).has_value()) << wrong;
  }
  const auto nested = [](std::size_t depth) {
    return ParseTemplateJson(std::string(depth, '[') + std::string(depth, ']'));
  };
  EXPECT_TRUE(nested(kMaxTemplateDepth).has_value());
  EXPECT_FALSE(nested(kMaxTemplateDepth + 1).has_value());
  std::string many = "[0";
  for (std::size_t i = 0; i + 3 < kMaxTemplateValues; ++i) many += ",0";
  EXPECT_TRUE(ParseTemplateJson(many + ",0]").has_value());
  EXPECT_FALSE(ParseTemplateJson(many + ",0,0]").has_value());
}

TEST(OrderedJson, FindsTheTextOfAMember) {
  const std::string body =
      R"({"a":"tools","b":{"tools":[1]},"x":"\"tools\":5,", "t\u006fols" : [ {"z":",}"} ] , "c":null})";
  EXPECT_EQ(MemberText(body, "tools"), R"([ {"z":",}"} ])");
  EXPECT_EQ(MemberText(body, "a"), R"("tools")");
  EXPECT_EQ(MemberText(body, "b"), R"({"tools":[1]})");
  EXPECT_EQ(MemberText(body, "c"), "");
  EXPECT_EQ(MemberText(body, "d"), "");
}

}  // namespace
}  // namespace flotilla::router
