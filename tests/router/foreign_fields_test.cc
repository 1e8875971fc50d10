// Tests fields of other servers' APIs. Each is accepted only with values that change nothing, and
// docs/api.md names all of them.
#include "router/http/foreign_fields.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "router/errors.h"
#include "router/http/openai_request.h"

namespace flotilla::router {
namespace {

Json ChatBody() { return {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}}; }
Json TextBody() { return {{"model", "m"}, {"prompt", "hi"}}; }

// Returns the status of both generation endpoints, which must agree.
absl::Status Parse(const Json& more, bool permissive = false) {
  Json chat = ChatBody(), text = TextBody();
  chat.update(more);
  text.update(more);
  const absl::Status of_chat =
      ParseChatCompletion(chat.dump(), {.permissive = permissive}).status();
  const absl::Status of_text = ParseCompletion(text.dump(), {.permissive = permissive}).status();
  EXPECT_EQ(of_chat, of_text) << more;
  return of_chat;
}

// Values of every type. A field may take only the accepted ones.
const std::vector<Json>& Values() {
  static const std::vector<Json> values = {
      true,           false,           0, -1, 1, 0.5, 7, "", "x", Json::array(), Json::array({1}),
      Json::object(), Json({{"a", 1}})};
  return values;
}

TEST(ForeignFields, PassExactlyWhereTheyCannotMatter) {
  ASSERT_GE(ForeignFields().size(), 42u);
  for (const ForeignField& field : ForeignFields()) {
    const std::string name(field.name);
    EXPECT_EQ(Parse({{name, nullptr}}), absl::OkStatus()) << name;
    for (const Json& value : field.accepted) {
      EXPECT_EQ(Parse({{name, value}}), absl::OkStatus()) << name << value;
    }
    for (const Json& value : Values()) {
      const bool passes = field.ignored || std::find(field.accepted.begin(), field.accepted.end(),
                                                     value) != field.accepted.end();
      // A permissive server ignores only fields that it does not know, and it knows these.
      for (const bool permissive : {false, true}) {
        const absl::Status status = Parse({{name, value}}, permissive);
        EXPECT_EQ(status.ok(), passes) << name << value << status;
        if (passes) continue;
        EXPECT_EQ(ErrorField(status), name);
        EXPECT_EQ(ErrorCode(status), kUnsupportedField);
      }
    }
  }
}

TEST(ForeignFields, SomeDependOnOthers) {
  EXPECT_EQ(Parse({{"n_predict", 5}, {"max_tokens", 5}}), absl::OkStatus());
  EXPECT_EQ(ErrorField(Parse({{"n_predict", 5}, {"max_tokens", 6}})), "n_predict");
  EXPECT_EQ(ErrorField(Parse({{"n_predict", 5}})), "n_predict");
  EXPECT_EQ(ErrorField(Parse({{"n_predict", -2}})), "n_predict");
  // llama.cpp's default: no bound of its own.
  EXPECT_EQ(Parse({{"n_predict", -1}}), absl::OkStatus());
  Json body = TextBody();
  body.update({{"n_predict", -1}, {"max_tokens", 5}});
  EXPECT_EQ(ParseCompletion(body.dump(), {})->prompts.front().max_tokens, 5);
  body.erase("max_tokens");
  EXPECT_EQ(ParseCompletion(body.dump(), {})->prompts.front().max_tokens, std::nullopt);
  EXPECT_EQ(Parse({{"repeat_last_n", 64}}), absl::OkStatus());
  EXPECT_EQ(Parse({{"repeat_last_n", 64}, {"presence_penalty", 0.0}, {"repetition_penalty", 1}}),
            absl::OkStatus());
  EXPECT_EQ(ErrorField(Parse({{"repeat_last_n", 64}, {"presence_penalty", 0.5}})), "repeat_last_n");
  EXPECT_EQ(Parse({{"repeat_last_n", -1}, {"presence_penalty", 0.5}}), absl::OkStatus());
}

// Bodies that real clients send by default.
TEST(ForeignFields, TheirClientsAreServed) {
  // llama.cpp's web page.
  EXPECT_EQ(Parse(Json::parse(R"({"stream":true,"cache_prompt":true,"temperature":0.8,"top_k":40,
      "top_p":0.95,"min_p":0.05,"dynatemp_range":0,"dynatemp_exponent":1,"typical_p":1,
      "xtc_probability":0,"xtc_threshold":0.1,"repeat_last_n":64,"repeat_penalty":1,
      "presence_penalty":0,"frequency_penalty":0,"dry_multiplier":0,"dry_base":1.75,
      "dry_allowed_length":2,"dry_penalty_last_n":-1,"max_tokens":100,
      "timings_per_token":false})")),
            absl::OkStatus());
  // GuideLLM.
  EXPECT_EQ(Parse(Json::parse(R"({"max_tokens":64,"stop":null,"ignore_eos":true,"stream":true,
      "stream_options":{"include_usage":true,"continuous_usage_stats":true}})")),
            absl::OkStatus());
  // vLLM's benchmark.
  EXPECT_EQ(Parse(Json::parse(R"({"temperature":0.0,"repetition_penalty":1.0,"max_tokens":16,
      "logprobs":null,"stream":true,"stream_options":{"include_usage":true},
      "truncate_prompt_tokens":null,"skip_special_tokens":true,
      "spaces_between_special_tokens":true,"vllm_xargs":{}})")),
            absl::OkStatus());
}

TEST(ForeignFields, AreDocumented) {
  std::ifstream file("docs/api.md");
  ASSERT_TRUE(file.is_open()) << "run the test from the source folder";
  std::stringstream text;
  text << file.rdbuf();
  for (const ForeignField& field : ForeignFields()) {
    EXPECT_NE(text.str().find('`' + std::string(field.name) + '`'), std::string::npos)
        << field.name << " is not in docs/api.md";
  }
}

}  // namespace
}  // namespace flotilla::router
