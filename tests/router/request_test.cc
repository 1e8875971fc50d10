// Bodies of the HTTP API: what is accepted, what is refused and by which name,
// and that no mutation of a body gets past parser and validator.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "router/errors.h"
#include "router/generate_request.h"
#include "router/http/json_input.h"
#include "router/http/json_text.h"
#include "router/http/openai_request.h"
#include "router/utf8.h"
#include "tests/support/allocations.h"

namespace flotilla::router {
namespace {

const ModelLimits kModel{"m", 1000, 512, /*max_sequences=*/32, /*end_tokens=*/{2}};

absl::Status Check(absl::StatusOr<OpenAiBody<ApiRequest>> parsed) {
  if (!parsed.ok()) return parsed.status();
  const Validator validator{RequestLimits{}};
  for (ApiRequest& prompt : parsed->prompts) {
    auto valid = validator.Validate(std::move(prompt), kModel);
    if (!valid.ok()) return valid.status();
  }
  return absl::OkStatus();
}

std::string ChatBody(const std::string& more) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}])" + more + "}";
}
std::string Text(const std::string& more) { return R"({"model":"m","prompt":"hi")" + more + "}"; }

absl::Status CheckChat(const std::string& body) { return Check(ParseChatCompletion(body, {})); }
absl::Status CheckText(const std::string& body) { return Check(ParseCompletion(body, {})); }

// The parser refuses a field that is too large before it copies the field for each prompt. Its
// message is the Validator's.
TEST(Request, LargeFieldsAreRefusedWhileReading) {
  const auto text = [](int bytes) { return '"' + std::string(bytes, 'x') + '"'; };
  std::string biases = R"("0":1)", ids = "0";
  for (std::size_t i = 1; i <= SamplingParams::kMaxBiases; ++i) {
    biases += ",\"" + std::to_string(i) + "\":1";
    ids += ",1";
  }
  std::string many = "0";
  for (std::size_t i = 0; i < SamplingParams::kMaxAllowed; ++i) many += ",1";
  const std::map<std::string, std::string> fields = {{"stop_token_ids", '[' + ids + ']'},
                                                     {"allowed_token_ids", '[' + many + ']'},
                                                     {"stop", text(257)},
                                                     {"dry_sequence_breakers", text(41)},
                                                     {"logit_bias", '{' + biases + '}'},
                                                     {"cache_salt", text(257)},
                                                     {"request_id", text(257)}};
  for (const auto& [name, value] : fields) {
    const std::string more = ",\"" + name + "\":" + value;
    for (const absl::Status& status : {ParseChatCompletion(ChatBody(more), {}).status(),
                                       ParseCompletion(Text(more), {}).status()}) {
      EXPECT_EQ(ErrorField(status), name) << status;
      EXPECT_EQ(ErrorCode(status), kInvalidValue);
    }
    if (name == "logit_bias" || name == "allowed_token_ids") continue;  // one bound for all
    const RequestLimits wide{.max_stop_bytes = 999,
                             .max_dry_breaker_bytes = 999,
                             .max_stop_tokens = 9999,
                             .max_label_bytes = 999};
    EXPECT_EQ(Check(ParseCompletion(Text(more), {.limits = wide})), CheckText(Text(more)));
  }
  const absl::Status unknown =
      ParseCompletion(R"({"prompt":"x","model":)" + text(1025) + "}", {}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorCode(unknown), kModelNotFound);
  EXPECT_LT(unknown.message().size(), 300u);
}

TEST(Request, AcceptsWhatClientsSend) {
  for (
      const char* more :
      {"", R"(,"temperature":0,"top_p":1,"seed":-5,"stop":null,"n":1,"user":"u","store":true)",
       R"(,"metadata":{"a":"b"},"service_tier":"auto","logit_bias":{},"tools":[])",
       R"(,"response_format":{"type":"text"},"presence_penalty":0.0,"parallel_tool_calls":true)",
       R"(,"frequency_penalty":-2,"presence_penalty":2,"repetition_penalty":0.01,"min_p":1)",
       R"(,"logit_bias":{"0":-100,"999":100.0},"repetition_penalty":100,"min_p":0)",
       R"(,"min_tokens":512)", R"(,"min_tokens":7,"max_tokens":7)",
       R"(,"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":20)",
       R"(,"stop":["a","b"],"max_tokens":5,"max_completion_tokens":7,"ignore_eos":true)",
       R"(,"top_k":-1,"timeout_ms":5,"priority":-3,"return_token_ids":true)",
       R"(,"n":32,"best_of":32,"stream":true)", R"(,"n":2,"best_of":5,"stop":["a"],"seed":3)",
       R"(,"use_beam_search":false,"length_penalty":1,"early_stopping":false,"best_of":null)",
       R"(,"use_beam_search":true,"best_of":32,"n":4,"length_penalty":-0.5,"stream":true)",
       R"(,"use_beam_search":true,"n":3,"temperature":0,"top_p":1,"top_k":-1,"stop":[])",
       R"(,"use_beam_search":true,"early_stopping":"never","temperature":1.0,"top_k":0)"}) {
    EXPECT_EQ(CheckChat(ChatBody(more)), absl::OkStatus()) << more;
  }
  EXPECT_EQ(CheckText(R"({"model":"m","prompt":[1,2,3],"echo":true,"max_tokens":0,"logprobs":20})"),
            absl::OkStatus());
  EXPECT_EQ(CheckText(R"({"model":"m","prompt":["a",[1,2]],"suffix":""})"), absl::OkStatus());
}

TEST(Request, TheSmallerOfTwoTokenLimitsWins) {
  auto parsed = ParseChatCompletion(ChatBody(R"(,"max_tokens":9,"max_completion_tokens":7)"), {});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->prompts[0].max_tokens, 7);
}

TEST(Request, JoinsTextParts) {
  auto parsed = ParseChatCompletion(
      R"({"model":"m","messages":[{"role":"developer","content":[{"type":"text","text":"a"},)"
      R"({"type":"text","text":"b"}],"name":"x"}]})",
      {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto valid = Validator({}).Validate(std::move(parsed->prompts[0]), kModel);
  ASSERT_TRUE(valid.ok()) << valid.status();
  const auto& turns = std::get<Conversation>(valid->api().prompt).turns;
  EXPECT_EQ(turns[0].role, "developer");
  EXPECT_EQ(turns[0].name, "x");
  EXPECT_EQ(turns[0].content, "a\nb");
}

// A model's files are no more to be trusted than clients.
TEST(Request, SamplingThatAModelRecommendsIsWhatAClientCouldSend) {
  const double nan = std::nan(""), infinite = HUGE_VAL;
  std::vector<std::string> refused;
  const std::vector<SamplingDefault> usable = UsableSampling({{"temperature", 0.6},
                                                              {"temperature", 2.5},
                                                              {"top_p", 0},
                                                              {"top_k", 1.5},
                                                              {"top_k", 1001},
                                                              {"top_k", -1},
                                                              {"top_k", 1e300},
                                                              {"min_p", nan},
                                                              {"min_p", -infinite},
                                                              {"seed", 5},
                                                              {"max_tokens", 7},
                                                              {"\xff", 7},
                                                              {"repetition_penalty", 1.05}},
                                                             1000, refused);
  EXPECT_EQ(usable, (std::vector<SamplingDefault>{
                        {"temperature", 0.6}, {"top_k", -1}, {"repetition_penalty", 1.05}}));
  ASSERT_EQ(refused.size(), 10u);
  EXPECT_EQ(refused[0], "temperature is 2.5; it must be from 0 to 2");
  EXPECT_EQ(refused[2], "top_k is 1.5; it must be an integer");
  EXPECT_EQ(refused[5], "min_p is not a number");
  EXPECT_EQ(refused[7], "seed is no parameter of the sampler");
}

// Of what a client leaves out, and only of that.
TEST(Request, AModelsSamplingFillsWhatIsAbsent) {
  ModelLimits model = kModel;
  model.sampling = {{"temperature", 0.6}, {"top_k", 20}, {"min_p", 0.25}};
  const auto check = [&](const std::string& more) {
    auto body = ParseCompletion(Text(more), {});
    auto valid = Validator({}).Validate(std::move(body->prompts.front()), model);
    EXPECT_TRUE(valid.ok()) << valid.status();
    return std::move(*valid).Release();
  };
  ApiRequest api = check("");
  EXPECT_EQ(api.temperature, 0.6);
  EXPECT_EQ(api.top_k, 20);
  EXPECT_EQ(api.min_p, 0.25);
  EXPECT_EQ(api.top_p, 1);
  api = check(R"(,"temperature":0,"top_k":-1,"min_p":null)");
  EXPECT_EQ(api.temperature, 0);
  EXPECT_EQ(api.top_k, 0) << "what stands for the default switches it off";
  EXPECT_EQ(api.min_p, 0.25);
  // Beam search draws nothing.
  EXPECT_EQ(check(R"(,"use_beam_search":true)").temperature, 1);
}

struct Refusal {
  std::string more, field;
  std::string_view code;
};

TEST(Request, RefusesByName) {
  for (const Refusal& r : std::vector<Refusal>{
           {R"(,"bogus":1)", "bogus", kUnknownField},
           {R"(,"logit_bias":{"5":100.5})", "logit_bias", kInvalidValue},
           {R"(,"logit_bias":{"1000":1})", "logit_bias", kInvalidValue},
           {R"(,"logit_bias":{"-1":1})", "logit_bias", kInvalidValue},
           {R"(,"logit_bias":{" 5":1})", "logit_bias", kInvalidValue},
           {R"(,"logit_bias":{"5":1,"05":2})", "logit_bias", kInvalidValue},
           {R"(,"logit_bias":{"":1})", "logit_bias", kInvalidValue},
           {R"(,"logit_bias":{"99999999999999999999":1})", "logit_bias", kInvalidValue},
           {R"(,"logit_bias":{"5":"1"})", "logit_bias", kInvalidValue},
           {R"(,"logit_bias":[5])", "logit_bias", kInvalidValue},
           {R"(,"presence_penalty":2.1)", "presence_penalty", kInvalidValue},
           {R"(,"frequency_penalty":-2.1)", "frequency_penalty", kInvalidValue},
           {R"(,"repetition_penalty":0)", "repetition_penalty", kInvalidValue},
           {R"(,"repetition_penalty":101)", "repetition_penalty", kInvalidValue},
           {R"(,"min_p":1.5)", "min_p", kInvalidValue},
           {R"(,"min_tokens":-1)", "min_tokens", kInvalidValue},
           {R"(,"min_tokens":8,"max_tokens":7)", "min_tokens", kInvalidValue},
           {R"(,"response_format":{"type":"xml"})", "response_format.type", kInvalidValue},
           {R"(,"temperature":"1")", "temperature", kInvalidValue},
           {R"(,"temperature":2.1)", "temperature", kInvalidValue},
           {R"(,"top_p":0)", "top_p", kInvalidValue},
           {R"(,"top_k":1.5)", "top_k", kInvalidValue},
           {R"(,"seed":1e3)", "seed", kInvalidValue},
           {R"(,"stop":[1])", "stop", kInvalidValue},
           {R"(,"stop":"")", "stop", kInvalidValue},
           {R"(,"stop_token_ids":[1000])", "stop_token_ids", kInvalidValue},
           {R"(,"allowed_token_ids":[1000])", "allowed_token_ids", kInvalidValue},
           {R"(,"allowed_token_ids":[-1])", "allowed_token_ids", kInvalidValue},
           {R"(,"allowed_token_ids":"5")", "allowed_token_ids", kInvalidValue},
           {R"(,"allowed_token_ids":[2],"min_tokens":1)", "allowed_token_ids", kInvalidValue},
           {R"(,"truncate_prompt_tokens":0)", "truncate_prompt_tokens", kInvalidValue},
           {R"(,"truncate_prompt_tokens":513)", "truncate_prompt_tokens", kContextLengthExceeded},
           {R"(,"include_stop_str_in_output":1)", "include_stop_str_in_output", kInvalidValue},
           {R"(,"bad_words":[""])", "bad_words", kInvalidValue},
           {R"(,"bad_words":[1])", "bad_words", kInvalidValue},
           {R"(,"dry_multiplier":-1)", "dry_multiplier", kInvalidValue},
           {R"(,"dry_base":0.9)", "dry_base", kInvalidValue},
           {R"(,"dry_allowed_length":-1)", "dry_allowed_length", kInvalidValue},
           {R"(,"dry_penalty_last_n":-2)", "dry_penalty_last_n", kInvalidValue},
           {R"(,"dry_sequence_breakers":[""])", "dry_sequence_breakers", kInvalidValue},
           {R"(,"dry_sequence_breakers":{"a":1})", "dry_sequence_breakers", kInvalidValue},
           {R"(,"top_n_sigma":-0.5)", "top_n_sigma", kInvalidValue},
           {R"(,"top_n_sigma":101)", "top_n_sigma", kInvalidValue},
           {R"(,"xtc_probability":1.5)", "xtc_probability", kInvalidValue},
           {R"(,"xtc_threshold":-0.1)", "xtc_threshold", kInvalidValue},
           {R"(,"stop_token_ids":[18446744073709551615])", "stop_token_ids", kInvalidValue},
           {R"(,"max_tokens":-1)", "max_tokens", kInvalidValue},
           {R"(,"max_tokens":513)", "max_tokens", kContextLengthExceeded},
           {R"(,"stream":1)", "stream", kInvalidValue},
           {R"(,"stream_options":{"include_usage":true})", "stream_options", kInvalidValue},
           {R"(,"stream":true,"stream_options":{"x":1})", "stream_options.x", kUnknownField},
           {R"(,"max_tokens":99999999999999999999999)", "max_tokens", kInvalidValue},
           {R"(,"timeout_ms":0)", "timeout_ms", kInvalidValue},
           {R"(,"priority":101)", "priority", kInvalidValue},
       }) {
    for (const absl::Status& status : {CheckChat(ChatBody(r.more)), CheckText(Text(r.more))}) {
      EXPECT_FALSE(status.ok()) << r.more;
      EXPECT_EQ(ErrorField(status), r.field) << r.more << status;
      EXPECT_EQ(ErrorCode(status), r.code) << r.more << status;
    }
  }
  EXPECT_EQ(ErrorField(CheckChat(ChatBody(R"(,"top_logprobs":2)"))), "top_logprobs");
  EXPECT_EQ(ErrorField(CheckChat(ChatBody(R"(,"logprobs":5)"))), "logprobs");
  EXPECT_EQ(ErrorField(CheckChat(ChatBody(R"(,"max_tokens":0)"))), "max_tokens");
  EXPECT_EQ(ErrorField(CheckChat(ChatBody(R"(,"max_completion_tokens":0)"))),
            "max_completion_tokens");
  EXPECT_EQ(ErrorField(CheckText(Text(R"(,"logprobs":true)"))), "logprobs");
  EXPECT_EQ(ErrorField(CheckText(Text(R"(,"logprobs":21)"))), "logprobs");
  EXPECT_EQ(ErrorField(CheckText(Text(R"(,"suffix":"x")"))), "suffix");
  EXPECT_EQ(CheckText(Text(R"(,"max_tokens":99999999999999999999999)")).message(),
            "'max_tokens' is too large");
  EXPECT_EQ(CheckText(Text(R"(,"max_tokens":-1e30)")).message(), "'max_tokens' is too small");
}

TEST(Request, SequencesAreBounded) {
  for (const Refusal& r : std::vector<Refusal>{
           {R"(,"n":0)", "n", kInvalidValue},
           {R"(,"n":-1)", "n", kInvalidValue},
           {R"(,"n":33)", "n", kInvalidValue},
           {R"(,"n":9223372036854775807)", "n", kInvalidValue},
           {R"(,"n":1.5)", "n", kInvalidValue},
           {R"(,"n":"2")", "n", kInvalidValue},
           {R"(,"best_of":0)", "best_of", kInvalidValue},
           {R"(,"best_of":33)", "best_of", kInvalidValue},
           {R"(,"n":3,"best_of":2)", "best_of", kInvalidValue},
           {R"(,"n":2,"best_of":3,"stream":true)", "stream", kUnsupportedField},
           {R"(,"length_penalty":0.5)", "length_penalty", kInvalidValue},
           {R"(,"early_stopping":true)", "early_stopping", kInvalidValue},
           {R"(,"early_stopping":"never")", "early_stopping", kInvalidValue},
           {R"(,"early_stopping":"always")", "early_stopping", kInvalidValue},
           {R"(,"early_stopping":1)", "early_stopping", kInvalidValue},
       }) {
    for (const absl::Status& status : {CheckChat(ChatBody(r.more)), CheckText(Text(r.more))}) {
      EXPECT_FALSE(status.ok()) << r.more;
      EXPECT_EQ(ErrorField(status), r.field) << r.more << status;
      EXPECT_EQ(ErrorCode(status), r.code) << r.more << status;
    }
  }
  EXPECT_EQ(CheckText(Text(R"(,"n":33)")).message(), "n is 33; it must be from 1 to 32");
}

TEST(Request, BeamSearchTakesNeitherSamplingNorStopStrings) {
  for (const Refusal& r : std::vector<Refusal>{
           {R"(,"use_beam_search":1)", "use_beam_search", kInvalidValue},
           {R"(,"temperature":0.5)", "temperature", kInvalidValue},
           {R"(,"top_p":0.9)", "top_p", kInvalidValue},
           {R"(,"top_k":5)", "top_k", kInvalidValue},
           {R"(,"seed":0)", "seed", kInvalidValue},
           {R"(,"min_p":0.1)", "min_p", kInvalidValue},
           {R"(,"frequency_penalty":1)", "frequency_penalty", kInvalidValue},
           {R"(,"presence_penalty":-1)", "presence_penalty", kInvalidValue},
           {R"(,"repetition_penalty":1.1)", "repetition_penalty", kInvalidValue},
           {R"(,"logit_bias":{"5":1})", "logit_bias", kInvalidValue},
           {R"(,"min_tokens":1)", "min_tokens", kInvalidValue},
           {R"(,"stop":"a")", "stop", kUnsupportedField},
           {R"(,"length_penalty":10.5)", "length_penalty", kInvalidValue},
           {R"(,"length_penalty":-1e300)", "length_penalty", kInvalidValue},
           {R"(,"length_penalty":"1")", "length_penalty", kInvalidValue},
           {R"(,"n":4,"best_of":3)", "best_of", kInvalidValue},
       }) {
    const std::string beams = r.more.find("use_beam") == std::string::npos
                                  ? R"(,"use_beam_search":true)" + r.more
                                  : r.more;
    for (const absl::Status& status : {CheckChat(ChatBody(beams)), CheckText(Text(beams))}) {
      EXPECT_EQ(ErrorField(status), r.field) << beams << status;
      EXPECT_EQ(ErrorCode(status), r.code) << beams << status;
    }
  }
  EXPECT_EQ(ErrorField(CheckText(Text(R"(,"use_beam_search":true,"max_tokens":0)"))), "max_tokens");
}

// beams * max(2, 1 + stop tokens) is at most 64; the model has one end token.
TEST(Request, CandidatesOfBeamSearchAreBounded) {
  const auto check = [](const std::string& more) {
    return CheckText(Text(R"(,"use_beam_search":true)" + more));
  };
  EXPECT_EQ(check(R"(,"n":32)"), absl::OkStatus());
  EXPECT_EQ(check(R"(,"n":32,"stop_token_ids":[2,2])"), absl::OkStatus());  // the end token again
  EXPECT_EQ(check(R"(,"n":2,"xtc_threshold":0.1)"), absl::OkStatus());      // the default
  EXPECT_EQ(ErrorField(check(R"(,"n":32,"stop_token_ids":[3])")), "n");
  EXPECT_EQ(ErrorField(check(R"(,"n":2,"best_of":32,"stop_token_ids":[3])")), "best_of");
  EXPECT_EQ(check(R"(,"n":32,"stop_token_ids":[3],"ignore_eos":true)"), absl::OkStatus());
  EXPECT_EQ(check(R"(,"n":16,"stop_token_ids":[3,4])"), absl::OkStatus());
  EXPECT_EQ(check(R"(,"n":22,"stop_token_ids":[3])").message(),
            "22 beams with 2 stop tokens have 66 candidates; at most 64 are allowed");
}

TEST(Request, LengthPenaltyIsANumber) {
  const Validator validator{RequestLimits{}};
  for (const double penalty : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    ApiRequest api{.model = "m", .prompt = "x"};
    api.use_beam_search = true;
    api.length_penalty = penalty;
    EXPECT_EQ(ErrorField(validator.Validate(api, kModel).status()), "length_penalty");
    api.use_beam_search = false;
    EXPECT_EQ(ErrorField(validator.Validate(api, kModel).status()), "length_penalty");
  }
}

TEST(Request, StopTokensAreTheRequestsAndTheModels) {
  ApiRequest api;
  api.stop_token_ids = {9, 3, 9};
  EXPECT_EQ(StopTokens(api, kModel), (std::vector<TokenId>{2, 3, 9}));
  api.ignore_eos = true;
  EXPECT_EQ(StopTokens(api, kModel), (std::vector<TokenId>{3, 9}));
}

TEST(Request, RefusesBadMessagesAndPrompts) {
  for (const char* messages :
       {"[]", "5", "[5]", R"([{"role":"function","content":"x"}])", R"([{"role":"user"}])",
        R"([{"role":"user","content":5}])", R"([{"role":"user","content":[]}])",
        R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}])",
        R"([{"role":"user","content":"x","tool_calls":[1]}])",
        R"([{"role":"user","content":"x","extra":1}])",
        R"([{"role":"user","content":[{"type":"text","text":"x","cache_control":{}}]}])"}) {
    const auto status = CheckChat(std::string(R"({"model":"m","messages":)") + messages + "}");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << messages;
    EXPECT_TRUE(ErrorField(status).starts_with("messages")) << messages << ErrorField(status);
  }
  for (const char* prompt :
       {"[]", "5", "{}", "[[]]", "[1000]", "[-1]", "[1.0]", "[1,\"a\"]", "[\"a\",5]", "[null]"}) {
    const auto status = CheckText(std::string(R"({"model":"m","prompt":)") + prompt + "}");
    EXPECT_EQ(ErrorField(status), "prompt") << prompt << status;
  }
}

TEST(Request, ANumberThatIsNoTokenIdIsNamedAsItWasSent) {
  for (const char* prompt : {"[18446744073709551615]", "[[1],[2,18446744073709551615]]"}) {
    const auto status = CheckText(std::string(R"({"model":"m","prompt":)") + prompt + "}");
    EXPECT_EQ(ErrorField(status), "prompt");
    EXPECT_EQ(status.message(), "'prompt' holds 18446744073709551615, which is no token id");
  }
  EXPECT_EQ(CheckText(R"({"model":"m","prompt":[9223372036854775807]})").message(),
            "prompt: token id 9223372036854775807 is outside the vocabulary (1000 tokens)");
}

TEST(Request, OtherModelsAreNotFound) {
  const auto status = CheckText(R"({"model":"other","prompt":"x"})");
  EXPECT_EQ(status.message(), "the model 'other' does not exist; served here: 'm'");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorCode(status), kModelNotFound);
  EXPECT_EQ(ErrorField(CheckText(R"({"prompt":"x"})")), "model");
}

TEST(Request, LimitsHoldAtTheirEdge) {
  const std::string stop256(256, 's');
  EXPECT_EQ(CheckText(Text(R"(,"stop":")" + stop256 + "\"")), absl::OkStatus());
  EXPECT_EQ(ErrorField(CheckText(Text(R"(,"stop":")" + stop256 + "x\""))), "stop");
  std::string stops = R"("a")";
  for (int i = 1; i < 16; ++i) stops += R"(,"a")";
  EXPECT_EQ(CheckText(Text(",\"stop\":[" + stops + "]")), absl::OkStatus());
  EXPECT_EQ(ErrorField(CheckText(Text(",\"stop\":[" + stops + ",\"a\"]"))), "stop");
  // The limit is larger than this model's vocabulary. The number of tokens is checked before
  // their ids.
  std::string biases = R"("0":1)", ids = "0";
  for (int i = 1; i < 1025; ++i) biases += ",\"" + std::to_string(i) + "\":1";
  EXPECT_EQ(CheckText(Text(",\"logit_bias\":{" + biases + "}")).message(),
            "logit_bias has 1025 tokens; at most 1024 are allowed");
}

TEST(Request, PermissiveIgnoresUnknownFieldsOnly) {
  const ParseOptions permissive{.permissive = true};
  auto parsed = ParseCompletion(Text(R"(,"bogus":1,"other":{})"), permissive);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->form.ignored, (std::vector<std::string>{"bogus", "other"}));
  EXPECT_FALSE(ParseCompletion(Text(R"(,"suffix":"x")"), permissive).ok());
}

TEST(Request, PermissiveIgnoresNestedFieldsToo) {
  const std::string body = R"({"model":"m","stream":true,"stream_options":{"more":1},"messages":[)"
                           R"({"role":"user","content":"x","reasoning_content":"y"},)"
                           R"({"role":"user","content":[{"type":"text","text":"x"},)"
                           R"({"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]}]})";
  auto parsed = ParseChatCompletion(body, {.permissive = true});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->form.ignored,
            (std::vector<std::string>{"stream_options.more", "messages[0].reasoning_content",
                                      "messages[1].content[1].cache_control"}));
  EXPECT_EQ(ErrorField(ParseChatCompletion(body, {}).status()), "stream_options.more");
}

TEST(Request, TheNamesOfIgnoredFieldsAreBounded) {
  std::string body = R"({"model":"m","prompt":"x")";
  for (int i = 0; i < 10'000; ++i) body += ",\"" + std::to_string(i) + "\":0";
  auto parsed = ParseCompletion(body + "}", {.permissive = true});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->form.ignored.size(), kMaxIgnored);
}

TEST(Json, WritesWhatItCanReadBack) {
  std::string text;
  for (int c = 0; c < 128; ++c) text.push_back(static_cast<char>(c));
  text += "é😀\u2028";
  std::string out;
  AppendJsonString(text, out);
  EXPECT_EQ(Json::parse(out).get<std::string>(), text);
  for (float value : {-0.1f, -1e-20f, -123.456f, 0.0f}) {
    std::string number;
    AppendJsonFloat(value, number);
    EXPECT_EQ(Json::parse(number).get<float>(), value);
  }
  std::string infinite;
  AppendJsonFloat(-INFINITY, infinite);
  EXPECT_EQ(infinite, "-9999.0");
}

// One random edit of a body.
void Mutate(std::string& body, std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {"null",
                                                   "true",
                                                   "-1",
                                                   "1e308",
                                                   "18446744073709551616",
                                                   "\"\"",
                                                   "[]",
                                                   "{}",
                                                   "[",
                                                   "{",
                                                   "\\ud83d",
                                                   "\xf0\x9f",
                                                   "\\u0000",
                                                   ":",
                                                   ",",
                                                   "\"stop\":",
                                                   "\"n\":3,",
                                                   "\"best_of\":4,",
                                                   "\"use_beam_search\":true,",
                                                   "0.0000001",
                                                   "\"<|im_end|>\""};
  const auto at = [&](std::size_t extra) { return random() % (body.size() + extra); };
  switch (random() % 6) {
    case 0:
      body.insert(at(1), kPieces[random() % kPieces.size()]);
      break;
    case 1:
      if (!body.empty()) body[at(0)] = static_cast<char>(random());
      break;
    case 2:
      if (!body.empty()) body.erase(at(0), 1 + random() % 8);
      break;
    case 3:
      if (!body.empty()) body.insert(at(1), body.substr(at(0), random() % 40));
      break;
    case 4:
      body.resize(at(1));
      break;
    default:
      if (!body.empty()) body.insert(at(1), std::string(random() % 100, body[at(0)]));
  }
}

TEST(Request, NoMutationOfABodyGetsPastTheChecks) {
  const std::vector<std::string> corpus = {
      ChatBody(R"(,"temperature":0.5,"stop":["a","b"],"logprobs":true,"top_logprobs":3,"seed":7)"),
      ChatBody(R"(,"stream":true,"stream_options":{"include_usage":true},"max_tokens":12)"),
      Text(R"(,"echo":true,"max_tokens":0,"logprobs":5,"stop_token_ids":[1,2])"),
      R"({"model":"m","prompt":[[1,2,3],[4]],"ignore_eos":true,"top_k":3,"top_p":0.1})",
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"é"}]}]})",
      R"({"model":"m","prompt":"héllo","add_special_tokens":false,"parse_special":true})",
      Text(R"(,"n":2,"best_of":3,"length_penalty":1,"early_stopping":false)"),
      ChatBody(R"(,"n":4,"use_beam_search":true,"length_penalty":0.5,"early_stopping":"never")"),
      ChatBody(
          R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",)"
          R"("properties":{"a":{"type":"string"}}}}}],"tool_choice":"auto","documents":[{"a":1}],)"
          R"("chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":true)"),
      R"({"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1",)"
      R"("type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":"x"}]})",
      R"({"model":"m","tokens":[1,2,3]})"};
  const std::uint64_t rounds = std::getenv("FLOTILLA_LONG") != nullptr ? 100'000 : 5'000;
  const Validator validator{RequestLimits{}};
  constexpr std::size_t kFixedBytes = 64 << 10, kBytesPerByte = 200;
  std::uint64_t served = 0;
  std::size_t most = 0;
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::string body = corpus[random() % corpus.size()];
    for (std::uint64_t edits = 1 + random() % 3; edits > 0; --edits) Mutate(body, random);
    const testing::AllocationCount allocated;
    const ParseOptions options{.permissive = random() % 2 == 0};
    (void)ParseTokenize(body, options);
    (void)ParseDetokenize(body, options);
    for (auto* parse : {&ParseChatCompletion, &ParseCompletion}) {
      auto parsed = (*parse)(body, options);
      if (!parsed.ok()) {
        ASSERT_TRUE(IsValidUtf8(std::string(parsed.status().message())));
        continue;
      }
      for (ApiRequest& prompt : parsed->prompts) {
        auto valid = validator.Validate(std::move(prompt), kModel);
        if (!valid.ok()) continue;
        ++served;
        const ApiRequest& api = valid->api();
        ASSERT_TRUE(*api.temperature >= 0 && *api.temperature <= 2);
        ASSERT_TRUE(*api.top_p > 0 && *api.top_p <= 1);
        ASSERT_TRUE(*api.top_k >= 0 && *api.top_k <= 1000);
        ASSERT_TRUE(api.min_p.value_or(0) >= 0 && api.min_p.value_or(0) <= 1);
        ASSERT_TRUE(std::abs(api.frequency_penalty.value_or(0)) <= 2);
        ASSERT_TRUE(std::abs(api.presence_penalty.value_or(0)) <= 2);
        ASSERT_TRUE(api.repetition_penalty.value_or(1) >= 0.01);
        for (const auto& [token, bias] : api.logit_bias) {
          ASSERT_TRUE(token >= 0 && token < 1000 && std::abs(bias) <= 100);
        }
        ASSERT_TRUE(*api.timeout_ms > 0);
        const std::int64_t best_of = api.best_of.value_or(*api.n);
        ASSERT_TRUE(*api.n >= 1 && *api.n <= best_of && best_of <= kModel.max_sequences);
        ASSERT_TRUE(std::abs(api.length_penalty.value_or(1)) <= 10);
        ASSERT_TRUE(!api.use_beam_search || (api.stop.empty() && best_of * 2 <= 64));
        ASSERT_LE(api.stop.size(), 16u);
        for (const std::string& stop : api.stop) ASSERT_TRUE(IsValidUtf8(stop) && !stop.empty());
        for (std::int64_t id : api.stop_token_ids) ASSERT_TRUE(id >= 0 && id < 1000);
        if (const auto* ids = std::get_if<std::vector<std::int64_t>>(&api.prompt)) {
          for (std::int64_t id : *ids) ASSERT_TRUE(id >= 0 && id < 1000);
        }
      }
    }
    // Four parsers and their error messages.
    const std::size_t bytes = allocated.bytes();
    most = std::max(most, bytes);
    ASSERT_LE(bytes, kFixedBytes + kBytesPerByte * body.size());
  }
  RecordProperty("mutated HTTP bodies; most bytes allocated for one",
                 std::to_string(rounds) + "; " + std::to_string(most));
  EXPECT_GT(served, rounds / 50) << "the mutations are too wild to test anything";
}

}  // namespace
}  // namespace flotilla::router
