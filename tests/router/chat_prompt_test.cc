// Prompts of conversations: what templates see, and what of a model its template tells.
#include "router/chat_prompt.h"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/text/tokenizer.h"
#include "router/errors.h"
#include "tests/support/test_model.h"
#include "tests/support/tool_templates.h"

namespace flotilla::router {
namespace {

const model::Tokenizer& TestTokenizer() {
  static const model::Tokenizer* const tokenizer = [] {
    const auto file = model::OpenCheckpoint(testing::ModelPath());
    return new model::Tokenizer(
        *model::Tokenizer::Create(testing::WithMarkers(*(*file)->ReadTokenizer())));
  }();
  return *tokenizer;
}

// A prompt's templates and what is made with them.
class Prompt {
 public:
  explicit Prompt(const std::string& chat, const std::optional<std::string>& tools = {})
      : chat_(*model::ChatTemplate::Compile(chat)) {
    if (tools.has_value()) tools_.emplace(*model::ChatTemplate::Compile(*tools));
    prompt_ = std::make_unique<ChatPrompt>(
        ChatPrompt::Parts{&TestTokenizer(), &chat_, tools_ ? &*tools_ : nullptr,
                          [](std::string_view format) { return "now " + std::string(format); }});
  }
  const ChatPrompt& operator*() const { return *prompt_; }
  std::string operator()(const Conversation& conversation) const {
    const auto rendered = prompt_->Render(conversation);
    if (!rendered.ok()) return ErrorField(rendered.status());
    std::string text;
    for (const model::TextPiece& piece : rendered->pieces) text += piece.text;
    return text;
  }

 private:
  model::ChatTemplate chat_;
  std::optional<model::ChatTemplate> tools_;
  std::unique_ptr<ChatPrompt> prompt_;
};

Conversation Of(std::vector<ChatTurn> turns) { return {.turns = std::move(turns)}; }
Conversation WithTool() {
  Conversation chat = Of({{.role = "user", .content = "x"}});
  chat.tools = {{.name = "f", .description = "d", .parameters = R"({"z":1,"a":{"y":2,"b":3}})"}};
  return chat;
}

TEST(ChatPrompt, ToolsComeInTheirOrder) {
  const Prompt prompt("{{ tools[0] | tojson }}");
  EXPECT_EQ(prompt(WithTool()),
            R"({"type": "function", "function": {"name": "f", "description": "d", "parameters": )"
            R"({"z": 1, "a": {"y": 2, "b": 3}}}})");
}

TEST(ChatPrompt, WithoutAChoiceTheModelDoesNotSeeThem) {
  const Prompt prompt("{{ 'tools' if tools else 'none' }}");
  Conversation chat = WithTool();
  EXPECT_EQ(prompt(chat), "tools");
  chat.tool_choice = ToolChoice::kNone;
  EXPECT_EQ(prompt(chat), "none");
}

TEST(ChatPrompt, MessagesKeepTheirMembers) {
  const Prompt prompt("{% for m in messages %}{{ m | tojson }}\n{% endfor %}");
  ChatTurn call{.role = "assistant", .content = "", .reasoning_content = "r"};
  call.tool_calls = {{.id = "1", .name = "f", .arguments = R"({"z":1,"a":[2]})"},
                     {.id = "2", .name = "g", .arguments = "no JSON"},
                     {.id = "3", .name = "h", .arguments = ""}};
  const Conversation chat =
      Of({{.role = "developer", .content = "d"},
          {.role = "user", .content = "x", .name = "n"},
          call,
          {.role = "tool", .content = "5", .name = "f", .tool_call_id = "1"}});
  EXPECT_EQ(
      prompt(chat),
      R"({"role": "system", "content": "d"})"
      "\n"
      R"({"role": "user", "content": "x", "name": "n"})"
      "\n"
      R"({"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [)"
      R"({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": [2]}}}, )"
      R"({"id": "2", "type": "function", "function": {"name": "g", "arguments": "no JSON"}}, )"
      R"({"id": "3", "type": "function", "function": {"name": "h", "arguments": {}}}]})"
      "\n"
      R"({"role": "tool", "content": "5", "name": "f", "tool_call_id": "1"})"
      "\n");
}

TEST(ChatPrompt, TemplatesThatWantTextGetText) {
  ChatTurn call{.role = "assistant", .content = ""};
  call.tool_calls = {{.id = "1", .name = "f", .arguments = R"({"a":1})"}};
  const Conversation chat = Of({{.role = "user", .content = "x"}, call});
  const Prompt text("{{ 'call ' + messages[1]['tool_calls'][0]['function']['arguments'] }}");
  EXPECT_EQ(text(chat), R"(call {"a":1})");
  // DeepSeek's template looks for calls only where there is no content.
  const Prompt null("{% if messages[1]['content'] is none %}calls{% endif %}");
  EXPECT_EQ(null(chat), "calls");
  const Prompt developer("{{ messages[0].role }} {# or developer #}");
  EXPECT_EQ(developer(Of({{.role = "developer", .content = "d"}})), "developer ");
}

TEST(ChatPrompt, EarlierCallsAreInXml) {
  ChatTurn call{.role = "assistant", .content = ""};
  call.tool_calls = {
      {.id = "1", .name = "f", .arguments = R"({"s":"a\nb","n":5,"o":{"x":[true]}})"},
      {.id = "2", .name = "g", .arguments = ""}};
  const Conversation chat = Of({{.role = "user", .content = "x"}, call});
  EXPECT_EQ(Prompt(testing::kQwenCoderTemplate)(chat),
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
            "<tool_call>\n<function=f>\n<parameter=s>\na\nb\n</parameter>\n"
            "<parameter=n>\n5\n</parameter>\n<parameter=o>\n{\"x\": [true]}\n</parameter>\n"
            "</function>\n</tool_call><tool_call>\n<function=g>\n</function>\n</tool_call>"
            "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Prompt(testing::kGlmTemplate)(chat),
            "<|user|>\nx<|assistant|>\n\n<tool_call>f\n<arg_key>s</arg_key>\n"
            "<arg_value>a\nb</arg_value>\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n"
            "<arg_key>o</arg_key>\n<arg_value>{\"x\": [true]}</arg_value>\n</tool_call>\n"
            "<tool_call>g\n</tool_call><|assistant|>");
}

TEST(ChatPrompt, ArgumentsInXmlHaveTheTypesOfTheirSchemas) {
  Conversation chat = Of({{.role = "user", .content = "x"}});
  chat.tools = {{.name = "f", .parameters = R"({"properties":{"a":{"type":"integer"}}})"},
                {.name = "g"}};
  for (const char* source : {testing::kQwenCoderTemplate, testing::kGlmTemplate}) {
    const Prompt prompt(source);
    EXPECT_EQ((*prompt).Check(chat), absl::OkStatus());
    EXPECT_EQ((*prompt).OutputOf(chat).tools->shape, ToolFormat::Shape::kXml);
    const auto types = (*prompt).ArgumentTypesOf(chat);
    ASSERT_NE(types, nullptr);
    EXPECT_EQ(types->Of("f", "a").types, unsigned{kIntegerType});
    EXPECT_EQ(types->Of("g", "a").types, unsigned{kAllTypes});
    chat.tool_choice = ToolChoice::kNone;
    EXPECT_EQ((*prompt).ArgumentTypesOf(chat), nullptr);
    chat.tool_choice = ToolChoice::kAuto;
  }
  EXPECT_EQ((*Prompt(testing::kHermesTemplate)).ArgumentTypesOf(chat), nullptr);
}

TEST(ChatPrompt, VariablesReachTheTemplate) {
  const Prompt prompt(
      "{{ documents[0].title }} {{ enable_thinking }} {{ add_generation_prompt }} "
      "{{ bos_token }} {{ unk_token }} {{ pad_token }} {{ strftime_now('%Y') }}");
  Conversation chat = Of({{.role = "user", .content = "x"}});
  chat.documents = R"([{"title":"t"}])";
  chat.template_kwargs = R"({"enable_thinking":false})";
  const std::string unknown(TestTokenizer().TokenBytes(TestTokenizer().unknown_id()));
  // The model's file says padding_token_id 2.
  EXPECT_EQ(prompt(chat), "t False True <|im_start|> " + unknown + " <|im_end|> now %Y");
}

// Templates give it a value where it has none, as gpt-oss' does.
TEST(ChatPrompt, TheEffortReachesTheTemplate) {
  const Prompt prompt("{{ reasoning_effort if reasoning_effort is defined else 'medium' }}");
  Conversation chat = Of({{.role = "user", .content = "x"}});
  EXPECT_EQ(prompt(chat), "medium");
  for (const std::string effort : {"minimal", "low", "high", "xhigh"}) {
    chat.reasoning_effort = effort;
    EXPECT_EQ(prompt(chat), effort);
  }
  chat.reasoning_effort = "none";
  EXPECT_EQ(prompt(chat), "medium");
}

TEST(ChatPrompt, TheTemplateForToolsIsUsedForTools) {
  const Prompt prompt("plain </think>", "{{ tools[0].function.name }} <tool_call></tool_call>");
  Conversation chat = WithTool();
  EXPECT_EQ(prompt(chat), "f <tool_call></tool_call>");
  EXPECT_EQ((*prompt).Check(chat), absl::OkStatus());
  EXPECT_EQ((*prompt).OutputOf(chat).tools->name, "hermes");
  chat.tools.clear();
  EXPECT_EQ(prompt(chat), "plain </think>");
  EXPECT_EQ((*prompt).OutputOf(chat).tools, nullptr);
  EXPECT_EQ((*prompt).OutputOf(chat).reasoning->name, "think");
}

TEST(ChatPrompt, SaysWhyThereAreNoTools) {
  const auto check = [](const std::string& source) { return (*Prompt(source)).Check(WithTool()); };
  absl::Status status = check("{{ messages[0].content }} <tool_call></tool_call>");
  EXPECT_EQ(ErrorField(status), "tools");
  EXPECT_EQ(ErrorCode(status), kUnsupportedField);
  EXPECT_NE(status.message().find("does not show them"), absl::string_view::npos) << status;
  status = check("{{ tools | tojson }}");
  EXPECT_NE(status.message().find("no format of calls"), absl::string_view::npos) << status;
  EXPECT_EQ(check(testing::kHermesTemplate), absl::OkStatus());
  EXPECT_EQ((*Prompt("x")).Check(Of({{.role = "user", .content = "x"}})), absl::OkStatus());
}

TEST(ChatPrompt, ContinuesTheLastMessage) {
  const Prompt prompt(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  Conversation chat = Of({{.role = "user", .content = "Say Paris is "},
                          {.role = "assistant", .content = " Paris is "}});
  chat.add_generation_prompt = false;
  EXPECT_EQ(
      prompt(chat),
      "<|im_start|>user\nSay Paris is <|im_end|>\n<|im_start|>assistant\n Paris is <|im_end|>\n");
  chat.continue_final_message = true;
  EXPECT_EQ(prompt(chat),
            "<|im_start|>user\nSay Paris is <|im_end|>\n<|im_start|>assistant\n Paris is ");
  // White space that the template does not write is not there.
  const Prompt trimmed("{{ messages[-1].content | trim }}<|im_end|>");
  EXPECT_EQ(trimmed(chat), "Paris is");
  // What is in the template's own text, too, is found in the message.
  for (const char* content : {"|", ">", "end", "m"}) {
    Conversation part = chat;
    part.turns.back().content = content;
    EXPECT_EQ(prompt(part), absl::StrCat("<|im_start|>user\nSay Paris is <|im_end|>\n"
                                         "<|im_start|>assistant\n",
                                         content));
  }
  Conversation blank = chat;
  blank.turns.back().content = "  ";
  EXPECT_EQ(trimmed(blank), "<|im_end|>");
  const Prompt upper("{{ messages[-1].content | upper }}");
  EXPECT_EQ(upper(chat), "continue_final_message");
}

TEST(ChatPrompt, SeesWhetherThoughtsHaveBegun) {
  const Prompt prompt(
      "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"
      "{# </think> #}");
  Conversation chat = Of({{.role = "user", .content = "<think>"}});
  EXPECT_TRUE((*prompt).Render(chat)->in_reasoning);
  chat.add_generation_prompt = false;  // the user wrote it
  EXPECT_FALSE((*prompt).Render(chat)->in_reasoning);
}

TEST(ChatPrompt, KnowsTheTokensOfMarkers) {
  const Prompt prompt(testing::kHermesTemplate);
  const auto is_marker = [&](const char* text, const Conversation& chat) {
    const TokenId token = TestTokenizer().FindSpecial(text);
    EXPECT_GE(token, 0) << text;
    return (*prompt).IsMarkerToken(token, (*prompt).OutputOf(chat));
  };
  Conversation chat = WithTool();
  EXPECT_TRUE(is_marker("<tool_call>", chat));
  EXPECT_TRUE(is_marker("</think>", chat));
  EXPECT_FALSE(is_marker("<|im_end|>", chat));
  chat.tool_choice = ToolChoice::kNone;
  EXPECT_FALSE(is_marker("<tool_call>", chat));
  chat.split_reasoning = false;
  EXPECT_FALSE(is_marker("</think>", chat));
}

TEST(ChatPrompt, AFormLeavesRoomForCalls) {
  const Prompt prompt(testing::kHermesTemplate);
  const Constraint form{Constraint::Kind::kRegex, "a"};
  const auto made = [&](const Conversation& chat) {
    return (*prompt).FormOf(form, "regex", chat, *(*prompt).Render(chat));
  };
  Conversation chat = WithTool();
  chat.tools.front().parameters = R"({"type":"object"})";
  const std::string call = R"({\"name\": \")" + chat.tools.front().name;
  EXPECT_NE(made(chat)->text.find(call), std::string::npos) << made(chat)->text;
  EXPECT_NE(made(chat)->text.find(R"("stop_after_first":false)"), std::string::npos);
  chat.parallel_tool_calls = false;
  EXPECT_EQ(made(chat)->text.find(R"("stop_after_first":false)"), std::string::npos);
  // A schema that the grammar's engine takes for less than it says is written in other words, as it
  // is for calls that must come.
  chat.tools.front().parameters =
      R"({"type":"object","properties":{"n":{"minimum":3}},"additionalProperties":false})";
  Conversation must = chat;
  must.tool_choice = ToolChoice::kRequired;
  const auto tag = [](const absl::StatusOr<Constraint>& constraint) {
    return nlohmann::json::parse(constraint->text)["format"];
  };
  EXPECT_EQ(tag(made(chat))["elements"][1]["elements"][1],
            tag((*prompt).ConstraintOf(must, false))["elements"][1]);
  EXPECT_EQ(made(chat)->text.find(R"({"minimum":3})"), std::string::npos) << made(chat)->text;
  chat.tools.front().parameters = R"({"type":"object","properties":{"a":{"not":{}}}})";
  EXPECT_EQ(ErrorField(made(chat).status()), "tools");
  EXPECT_NE(made(chat).status().message().find("as structured output needs it"),
            absl::string_view::npos);
  chat.tool_choice = ToolChoice::kNone;
  EXPECT_EQ(made(chat)->text.find(call), std::string::npos);
}

TEST(ChatPrompt, AFormLeavesRoomForThoughts) {
  const Prompt prompt(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if start == 'open' %}<seed:think>\n"
      "{% elif start == 'over' %}<seed:think></seed:think>\n{% endif %}");
  const auto rendered = [&](const std::string& start) {
    Conversation chat = Of({{.role = "user", .content = "x"}});
    chat.template_kwargs = R"({"start":")" + start + R"("})";
    return std::pair(chat, *(*prompt).Render(chat));
  };
  const Constraint form{Constraint::Kind::kRegex, "a"};
  const auto behind = [&](const std::string& start) {
    const auto [chat, end] = rendered(start);
    EXPECT_TRUE((*prompt).MayThink(chat, end)) << start;
    return (*prompt).FormOf(form, "regex", chat, end)->text;
  };
  EXPECT_NE(behind("").find("optional"), std::string::npos);
  EXPECT_EQ(behind("open").find("optional"), std::string::npos);
  // They are over, or nobody tells them apart.
  auto [chat, end] = rendered("over");
  EXPECT_FALSE((*prompt).MayThink(chat, end));
  std::tie(chat, end) = rendered("");
  chat.split_reasoning = false;
  EXPECT_FALSE((*prompt).MayThink(chat, end));
  EXPECT_EQ((*prompt).FormOf(form, "regex", chat, end)->text, form.text);
  chat.split_reasoning = true;
  const Constraint large{Constraint::Kind::kRegex, std::string(Constraint::kMaxBytes - 9, 'a')};
  const absl::Status refused =
      (*prompt).FormOf(large, "structured_outputs.regex", chat, end).status();
  EXPECT_EQ(ErrorField(refused), "structured_outputs.regex");
  EXPECT_EQ(refused.message().find("structured_outputs.regex: the form of the answer"), 0u);
  // No limit ends with several tokens.
  EXPECT_EQ(ErrorField((*prompt).LimitOf(5, end).status()), "thinking_token_budget");
  // Markers that are control tokens are named.
  const Prompt control("{% for m in messages %}{{ m.content }}{% endfor %}{# <think></think> #}");
  std::tie(chat, end) = rendered("");
  ASSERT_TRUE((*control).MayThink(chat, end));
  const TokenId id = TestTokenizer().Encode("</think>", {.parse_special = true})->at(0);
  const std::string named = R"("end":{"type":"token","token":)" + std::to_string(id) + "}";
  const Constraint behind_control = *(*control).FormOf(form, "regex", chat, end);
  EXPECT_NE(behind_control.text.find(named), std::string::npos) << behind_control.text;
  EXPECT_EQ(behind_control.text.find("think>"), std::string::npos) << behind_control.text;
  EXPECT_EQ((*control).LimitOf(5, end)->begin.size(), 1u);
  end.in_reasoning = true;
  EXPECT_TRUE((*control).LimitOf(5, end)->begin.empty());
  std::tie(chat, end) = rendered("");
  end.has_reasoning = true;
  EXPECT_FALSE(*(*control).LimitOf(5, end));
}

}  // namespace
}  // namespace flotilla::router
