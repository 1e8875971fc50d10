// Tools and thoughts over HTTP with real sockets: what the engine is asked, and what clients get of
// an answer that calls tools.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/router/http_fixture.h"
#include "tests/support/tool_templates.h"

namespace flotilla::router {
namespace {

const char kTools[] =
    R"(,"tools":[{"type":"function","function":{"name":"add","description":"adds","parameters":)"
    R"({"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"integer"}}}}},)"
    R"({"type":"function","function":{"name":"now"}}])";

class ToolsTest : public HttpTest {
 protected:
  // Serves "q" beside "m": SmolLM2 with the markers of Qwen 3 as control tokens.
  void SetUp() override {
    const auto file = model::OpenCheckpoint(testing::ModelPath());
    const TokenizerBundle bundle = testing::WithMarkers(*(*file)->ReadTokenizer());
    tokenizer_ = std::make_unique<model::Tokenizer>(*model::Tokenizer::Create(bundle));
    template_ = std::make_unique<model::ChatTemplate>(
        *model::ChatTemplate::Compile(testing::kHermesTemplate));
    Serve();
    service_->AddModel({.id = "q",
                        .end_tokens = text_.stop_tokens,
                        .engine = engine_.get(),
                        .tokenizer = tokenizer_.get(),
                        .chat_template = template_.get()});
  }
  // The next answer; markers in it are tokens.
  void Say(const std::string& text, bool end = true) {
    std::vector<TokenId> tokens = *tokenizer_->Encode(text, {.parse_special = true});
    if (end) tokens.push_back(text_.eos);
    engine_->Script({.tokens = tokens});
  }
  HttpResponse Ask(const std::string& more,
                   const std::string& messages = R"([{"role":"user","content":"hi"}])") {
    return Post("/v1/chat/completions", R"({"model":"q","messages":)" + messages + more + "}");
  }
  std::string Prompt() const {
    return tokenizer_->Decode(engine_->submitted().back().prompt, /*skip_special=*/false);
  }

  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::unique_ptr<model::ChatTemplate> template_;
};

const char kTwoCalls[] =
    "<think>\nAdd, then look.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"add\", "
    "\"arguments\": {\"z\": 1, \"a\": \"</think> é\"}}\n</tool_call>\n<tool_call>\n"
    "{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

TEST_F(ToolsTest, AnAnswerHasItsCalls) {
  Say(kTwoCalls);
  const HttpResponse response = Ask(kTools);
  ASSERT_EQ(response.status, 200) << response.body;
  const json choice = response.json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const json& message = choice["message"];
  EXPECT_EQ(message["content"], "Let me see.");
  EXPECT_EQ(message["reasoning_content"], "Add, then look.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"],
            json({{"name", "add"}, {"arguments", R"({"z": 1, "a": "</think> é"})"}}));
  EXPECT_EQ(message["tool_calls"][1]["function"], json({{"name", "now"}, {"arguments", "{}"}}));
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
  // The template saw the tools with their members in the client's order.
  EXPECT_NE(Prompt().find(R"({"type": "function", "function": {"name": "add", "description": )"
                          R"("adds", "parameters": {"type": "object", "properties": {"z": )"),
            std::string::npos)
      << Prompt();
}

TEST_F(ToolsTest, AStreamHasThemInPieces) {
  Say(kTwoCalls);
  const HttpResponse response = Ask(std::string(kTools) + R"(,"stream":true,"logprobs":true)");
  ASSERT_EQ(response.status, 200) << response.body;
  std::string content, reasoning, finish;
  std::map<std::size_t, json> calls;
  std::size_t pieces = 0, logprobs = 0;
  const auto events = response.events();
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json choice = json::parse(events[i])["choices"][0];
    const json& delta = choice["delta"];
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    if (!choice["logprobs"].is_null()) logprobs += choice["logprobs"]["content"].size();
    if (!delta.contains("tool_calls")) continue;
    ASSERT_EQ(delta["tool_calls"].size(), 1u);
    const json& call = delta["tool_calls"][0];
    const std::size_t index = call["index"];
    if (!calls.contains(index)) {  // the first piece has all but the arguments
      EXPECT_EQ(call["type"], "function");
      EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
      EXPECT_EQ(call["function"]["arguments"], "");
      calls[index] = call["function"];
      continue;
    }
    EXPECT_EQ(call.size(), 2u);
    EXPECT_EQ(call["function"].size(), 1u);
    calls[index]["arguments"] = calls[index]["arguments"].get<std::string>() +
                                call["function"]["arguments"].get<std::string>();
    ++pieces;
  }
  EXPECT_EQ(content, "Let me see.");
  EXPECT_EQ(reasoning, "Add, then look.");
  EXPECT_EQ(finish, "tool_calls");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0], json({{"name", "add"}, {"arguments", R"({"z": 1, "a": "</think> é"})"}}));
  EXPECT_EQ(calls[1], json({{"name", "now"}, {"arguments", "{}"}}));
  EXPECT_GT(pieces, 2u);
  EXPECT_EQ(logprobs, tokenizer_->Encode(kTwoCalls, {.parse_special = true})->size() + 1);
}

TEST_F(ToolsTest, CallsComeBackIntoThePrompt) {
  Say("It is 3.");
  const HttpResponse response =
      Ask(kTools, R"([{"role":"user","content":"1+2?"},{"role":"assistant","content":null,)"
                  R"("tool_calls":[{"id":"call_1","type":"function","function":)"
                  R"({"name":"add","arguments":"{\"z\": 1, \"a\": 2}"}}]},)"
                  R"({"role":"tool","tool_call_id":"call_1","content":"3"}])");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.json()["choices"][0]["message"]["content"], "It is 3.");
  EXPECT_EQ(response.json()["choices"][0]["finish_reason"], "stop");
  EXPECT_FALSE(response.json()["choices"][0]["message"].contains("tool_calls"));
  EXPECT_NE(Prompt().find("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"z\": 1, \"a\": 2}}\n"
                          "</tool_call><|im_end|>\n<|im_start|>tool\n3<|im_end|>\n"),
            std::string::npos)
      << Prompt();
}

TEST_F(ToolsTest, OneCallEndsTheAnswer) {
  for (const char* stream : {"", R"(,"stream":true)"}) {
    Say(kTwoCalls);
    const HttpResponse response =
        Ask(std::string(kTools) + R"(,"parallel_tool_calls":false)" + stream);
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_NE(response.body.find("\"tool_calls\""), std::string::npos);
    EXPECT_EQ(response.body.find("\"now\""), std::string::npos) << response.body;
    EXPECT_NE(response.body.find(R"("finish_reason":"tool_calls")"), std::string::npos);
  }
}

TEST_F(ToolsTest, OneCallOfABeamSearchCancelsNothing) {
  Say(kTwoCalls);
  const HttpResponse response =
      Ask(std::string(kTools) + R"(,"parallel_tool_calls":false,"use_beam_search":true)"
                                R"(,"best_of":2,"n":2)");
  ASSERT_EQ(response.status, 200) << response.body;
  for (const json& choice : response.json()["choices"]) {
    EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
  }
  EXPECT_TRUE(engine_->cancelled().empty());
}

TEST_F(ToolsTest, AnAnswerThatIsCutOffHasWhatThereIs) {
  Say("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"z\": 1, \"a\": 2", /*end=*/false);
  engine_->Script({});
  const std::string text = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"z\": 1";
  const std::size_t tokens = tokenizer_->Encode(text, {.parse_special = true})->size();
  const HttpResponse response =
      Ask(std::string(kTools) + ",\"max_tokens\":" + std::to_string(tokens));
  ASSERT_EQ(response.status, 200) << response.body;
  const json choice = response.json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"z\": 1");
  EXPECT_TRUE(choice["message"]["content"].is_null());
}

TEST_F(ToolsTest, WithoutToolsCallsAreText) {
  Say(kTwoCalls);
  const json none = Ask(std::string(kTools) + R"(,"tool_choice":"none")").json()["choices"][0];
  EXPECT_EQ(none["finish_reason"], "stop");
  EXPECT_FALSE(none["message"].contains("tool_calls"));
  EXPECT_EQ(Prompt().find("\"add\""), std::string::npos);
  // Control tokens have no text, as ever.
  EXPECT_TRUE(none["message"]["content"].get<std::string>().starts_with(
      "Let me see.\n\n{\"name\": \"add\""))
      << none;
}

TEST_F(ToolsTest, ThoughtsAreToldApart) {
  Say("Hmm.\n</think>\n\nParis.");
  json message =
      Ask(R"(,"chat_template_kwargs":{"enable_thinking":true})").json()["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Paris.");
  EXPECT_EQ(message["reasoning_content"], "Hmm.");
  EXPECT_TRUE(Prompt().ends_with("<think>\n")) << Prompt();
  Say("<think>Hmm.</think>Paris.");
  message = Ask(R"(,"include_reasoning":false)").json()["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Paris.");
  EXPECT_FALSE(message.contains("reasoning_content"));
  Say("<think>Hmm.</think>Paris.");
  message = Ask(R"(,"reasoning_format":"none","skip_special_tokens":false)")
                .json()["choices"][0]["message"];
  EXPECT_EQ(message["content"], "<think>Hmm.</think>Paris.");
  EXPECT_FALSE(message.contains("reasoning_content"));
  Say("<think>Hmm. stop it</think>");
  message = Ask(R"(,"stop":"stop")").json()["choices"][0]["message"];
  EXPECT_EQ(message["content"], "");
  EXPECT_EQ(message["reasoning_content"], "Hmm.");
}

TEST_F(ToolsTest, ThoughtsHaveABudget) {
  const auto limit = [&](const std::string& more) {
    Say("<think>Hmm.</think>Paris.");
    const HttpResponse response = Ask(more);
    EXPECT_EQ(response.status, 200) << response.body;
    return engine_->submitted().back().sampling.thinking;
  };
  const TokenId begin = tokenizer_->Encode("<think>", {.parse_special = true})->at(0);
  const TokenId end = tokenizer_->Encode("</think>", {.parse_special = true})->at(0);
  EXPECT_FALSE(limit(""));
  EXPECT_FALSE(limit(R"(,"thinking_token_budget":-1)"));
  EXPECT_FALSE(limit(R"(,"thinking_token_budget":null)"));
  EXPECT_EQ(limit(R"(,"thinking_token_budget":7)"),
            (ThinkingLimit{.begin = {begin}, .end = end, .forced = {end}, .budget = 7}));
  // The prompt has begun them.
  EXPECT_EQ(limit(R"(,"thinking_token_budget":0,"chat_template_kwargs":{"enable_thinking":true})"),
            (ThinkingLimit{.end = end, .forced = {end}, .budget = 0}));
  // SmolLM2's own template has no thoughts, and a text has none.
  json error = Chat(R"(,"thinking_token_budget":7)").json()["error"];
  EXPECT_EQ(error["param"], "thinking_token_budget");
  EXPECT_EQ(error["code"], "unsupported_field");
  EXPECT_NE(error["message"].get<std::string>().find("no thoughts"), std::string::npos) << error;
  error = Post("/v1/completions", R"({"model":"q","prompt":"x","thinking_token_budget":7})")
              .json()["error"];
  EXPECT_EQ(error["param"], "thinking_token_budget");
  error = Ask(R"(,"thinking_token_budget":7,"use_beam_search":true,"n":2)").json()["error"];
  EXPECT_EQ(error["param"], "thinking_token_budget");
  error = Ask(R"(,"thinking_token_budget":-2)").json()["error"];
  EXPECT_EQ(error["param"], "thinking_token_budget");
}

TEST_F(ToolsTest, RefusalsNameTheField) {
  json error = Chat(kTools).json()["error"];  // SmolLM2's own template
  EXPECT_EQ(error["param"], "tools");
  EXPECT_EQ(error["code"], "unsupported_field");
  const std::string required = R"(,"tool_choice":"required")";
  error = Ask(R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)"
              R"({"type":"object","not":{}}}}])" +
              required)
              .json()["error"];
  EXPECT_EQ(error["param"], "tools");
  EXPECT_EQ(error["code"], "unsupported_field");
  EXPECT_NE(error["message"].get<std::string>().find("\"not\" is not supported"), std::string::npos)
      << error;
  error = Ask(kTools + required + R"(,"stop":"x")").json()["error"];
  EXPECT_EQ(error["param"], "stop");
  error = Ask(kTools + required + R"(,"response_format":{"type":"json_object"})").json()["error"];
  EXPECT_EQ(error["param"], "tool_choice");
  EXPECT_EQ(error["code"], "unsupported_field");
  // With the calls that may come in its place the form is too large.
  const std::string large =
      R"("root ::= \")" + std::string(Constraint::kMaxBytes - 100, 'a') + R"(\"")";
  error = Ask(std::string(kTools) + R"(,"guided_grammar":)" + large).json()["error"];
  EXPECT_EQ(error["param"], "guided_grammar") << error;
  error = Ask(std::string(kTools) + R"(,"structured_outputs":{"grammar":)" + large + "}")
              .json()["error"];
  EXPECT_EQ(error["param"], "structured_outputs.grammar") << error;
}

TEST_F(ToolsTest, AFormIsTheAnswerOrThereAreCalls) {
  const std::string call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const std::string more = std::string(kTools) + R"(,"response_format":{"type":"json_object"})";
  Say(call);
  json choice = Ask(more).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const Constraint constraint = engine_->submitted().back().sampling.constraint;
  EXPECT_EQ(constraint.kind, Constraint::Kind::kStructuralTag);
  for (const char* part : {R"("type":"or")", R"({\"name\": \"add\")", R"({\"name\": \"now\")"}) {
    EXPECT_NE(constraint.text.find(part), std::string::npos) << constraint.text;
  }
  // A string of the form may have the text of a call.
  const std::string form = json{{"a", call}}.dump();
  Say(form);
  choice = Ask(more).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"], form);
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
}

TEST_F(ToolsTest, ACallThatMustComeIsAConstraint) {
  const std::string tools = kTools;
  const auto constraint = [&](const std::string& more) {
    Say("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
    const HttpResponse response = Ask(tools + more);
    EXPECT_EQ(response.status, 200) << response.body;
    return engine_->submitted().back().sampling.constraint;
  };
  EXPECT_FALSE(constraint(""));
  EXPECT_FALSE(constraint(R"(,"tool_choice":"none")"));
  const Constraint any = constraint(R"(,"tool_choice":"required")");
  EXPECT_EQ(any.kind, Constraint::Kind::kStructuralTag);
  const Constraint named =
      constraint(R"(,"tool_choice":{"type":"function","function":{"name":"add"}})");
  EXPECT_EQ(named.kind, Constraint::Kind::kStructuralTag);
  for (const char* name : {"add", "now"}) {
    const std::string call = std::string(R"({\"name\": \")") + name;
    EXPECT_NE(any.text.find(call), std::string::npos) << any.text;
    EXPECT_EQ(named.text.find(call) != std::string::npos, std::string(name) == "add");
  }
}

TEST_F(ToolsTest, BeamsFollowTheGrammarOfCalls) {
  Say("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
  const HttpResponse response =
      Ask(std::string(kTools) + R"(,"tool_choice":"required","use_beam_search":true,"best_of":2)");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "now");
  const TokenizedRequest& request = engine_->submitted().back();
  EXPECT_TRUE(request.sampling.constraint);
  EXPECT_EQ(request.beam->beams, 2u);
}

TEST_F(ToolsTest, ArgumentsInXmlBecomeJson) {
  const auto coder = *model::ChatTemplate::Compile(testing::kQwenCoderTemplate);
  service_->AddModel({.id = "coder",
                      .end_tokens = text_.stop_tokens,
                      .engine = engine_.get(),
                      .tokenizer = tokenizer_.get(),
                      .chat_template = &coder});
  for (const char* choice : {"", R"(,"tool_choice":"required")"}) {
    Say("<tool_call>\n<function=add>\n<parameter=z>\n1\n</parameter>\n<parameter=note>\nsay \"1\"\n"
        "</parameter>\n</function>\n</tool_call>");
    const HttpResponse response = Post(
        "/v1/chat/completions", R"({"model":"coder","messages":[{"role":"user","content":"hi"}])" +
                                    std::string(kTools) + choice + "}");
    ASSERT_EQ(response.status, 200) << response.body;
    const json calls = response.json()["choices"][0]["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0]["function"],
              json({{"name", "add"}, {"arguments", R"({"z": 1, "note": "say \"1\""})"}}));
    const Constraint constraint = engine_->submitted().back().sampling.constraint;
    EXPECT_EQ(constraint.text.find("\"qwen_xml\"") != std::string::npos, *choice != '\0');
  }
}

TEST_F(ToolsTest, TokenizeSeesThem) {
  const auto count = [&](const std::string& more) {
    return Post("/tokenize",
                R"({"model":"q","messages":[{"role":"user","content":"hi"}])" + more + "}")
        .json()
        .value("count", 0);
  };
  EXPECT_GT(count(kTools), count("") + 20);
  EXPECT_GT(count(""), count(R"(,"add_generation_prompt":false)"));
  EXPECT_GT(count(R"(,"add_generation_prompt":false)"), count(R"(,"continue_final_message":true)"));
}

}  // namespace
}  // namespace flotilla::router
