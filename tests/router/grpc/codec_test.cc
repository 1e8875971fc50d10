#include "router/grpc/codec.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/codec/status.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

v1::GenerateRequest Parse(const std::string& text) {
  v1::GenerateRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

TEST(GrpcCodec, ReadsEveryField) {
  const auto call = FromProto(Parse(R"(
      model: "m" text: "hello" add_special_tokens: false
      sampling { temperature: 0.5 top_k: 7 top_p: 0.25 seed: 18446744073709551615
        min_p: 0.125 frequency_penalty: -2 presence_penalty: 0.5 repetition_penalty: 1.5
        logit_bias { token_id: 7 bias: -100 } }
      stop { strings: "a" strings: "b" token_ids: 3 token_ids: 4 ignore_eos: true min_tokens: 6 }
      max_tokens: 99 logprobs { output_top: 5 prompt_top: 2 }
      return_token_ids: true priority: -3 request_id: "label" cache_salt: "salt")"));
  ASSERT_TRUE(call.ok()) << call.status();
  const ApiRequest& api = *call;
  EXPECT_EQ(api.model, "m");
  EXPECT_EQ(std::get<std::string>(api.prompt), "hello");
  EXPECT_FALSE(api.add_special_tokens);
  EXPECT_EQ(api.temperature, 0.5);
  EXPECT_EQ(api.top_k, 7);
  EXPECT_EQ(api.top_p, 0.25);
  EXPECT_EQ(api.seed, UINT64_MAX);
  EXPECT_EQ(api.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(api.stop_token_ids, (std::vector<std::int64_t>{3, 4}));
  EXPECT_TRUE(api.ignore_eos);
  EXPECT_EQ(api.min_tokens, 6);
  EXPECT_EQ(api.min_p, 0.125);
  EXPECT_EQ(api.frequency_penalty, -2);
  EXPECT_EQ(api.presence_penalty, 0.5);
  EXPECT_EQ(api.repetition_penalty, 1.5);
  EXPECT_EQ(api.logit_bias, (std::vector<std::pair<std::int64_t, double>>{{7, -100.0}}));
  EXPECT_EQ(api.max_tokens, 99);
  EXPECT_EQ(api.logprobs, 5);
  EXPECT_EQ(api.prompt_logprobs, 2);
  EXPECT_EQ(api.priority, -3);
  EXPECT_EQ(api.client_request_id, "label");
  EXPECT_EQ(api.cache_salt, "salt");
  EXPECT_TRUE(call->return_token_ids);
}

TEST(GrpcCodec, AbsentFieldsStayAbsent) {
  const auto call = FromProto(Parse(R"(token_ids { ids: 1 ids: -1 })"));
  ASSERT_TRUE(call.ok());
  const ApiRequest& api = *call;
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(api.prompt), (std::vector<std::int64_t>{1, -1}));
  EXPECT_TRUE(api.add_special_tokens);
  EXPECT_FALSE(api.temperature || api.top_k || api.top_p || api.seed || api.max_tokens ||
               api.logprobs || api.prompt_logprobs || api.timeout_ms || api.n || api.best_of ||
               api.use_beam_search || api.min_p || api.frequency_penalty || api.presence_penalty ||
               api.repetition_penalty || api.min_tokens);
  EXPECT_TRUE(api.logit_bias.empty());
  EXPECT_FALSE(call->return_token_ids);
}

TEST(GrpcCodec, ZeroIsNotAbsent) {
  const auto call = FromProto(Parse(
      R"(text: "" sampling { temperature: 0 seed: 0 } max_tokens: 0 logprobs { output_top: 0 })"));
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->temperature, 0.0);
  EXPECT_EQ(call->seed, 0u);
  EXPECT_EQ(call->max_tokens, 0);
  EXPECT_EQ(call->logprobs, 0);
}

TEST(GrpcCodec, ReadsSequencesAndBeams) {
  auto call = FromProto(Parse(R"(text: "x" n: 3 best_of: 4294967295)"));
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->n, 3);
  EXPECT_EQ(call->best_of, 4294967295);
  EXPECT_FALSE(call->use_beam_search);
  EXPECT_FALSE(call->stream);
  call = FromProto(Parse(R"(text: "x" beam_search {})"));
  ASSERT_TRUE(call.ok());
  EXPECT_TRUE(call->use_beam_search);
  EXPECT_FALSE(call->n || call->best_of || call->length_penalty);
  using EarlyStopping = BeamOptions::EarlyStopping;
  EXPECT_EQ(call->early_stopping, EarlyStopping::kFalse);
  for (const auto& [name, value] :
       {std::pair("ALWAYS", EarlyStopping::kTrue), std::pair("NEVER", EarlyStopping::kNever)}) {
    call = FromProto(Parse(
        absl::StrCat("text: 'x' beam_search { length_penalty: 0.5 early_stopping: EARLY_STOPPING_",
                     name, " }")));
    ASSERT_TRUE(call.ok());
    EXPECT_EQ(call->early_stopping, value);
    EXPECT_EQ(call->length_penalty, 0.5);
  }
}

TEST(GrpcCodec, RefusesAnEnumValueOfTheFuture) {
  v1::GenerateRequest request;
  request.set_text("x");
  request.mutable_beam_search()->set_early_stopping(static_cast<v1::BeamSearch::EarlyStopping>(7));
  const grpc::Status status = ToGrpcStatus(FromProto(request).status());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(codec::DetailsOf(status).field, "beam_search.early_stopping");
}

TEST(GrpcCodec, WritesTheScoreWhereThereIsOne) {
  v1::Finish finish;
  ToProto(ChoiceEnd{.choice = 2}, &finish);
  EXPECT_FALSE(finish.has_score());
  ToProto(ChoiceEnd{.choice = 2, .score = 0.0f}, &finish);
  EXPECT_TRUE(finish.has_score());
  EXPECT_EQ(finish.choice(), 2u);
}

TEST(GrpcCodec, ReadsAChat) {
  const auto call = FromProto(Parse(
      R"(chat { messages { role: "system" content: "s" } messages { role: "user" content: "u" } })"));
  ASSERT_TRUE(call.ok());
  const auto& turns = std::get<Conversation>(call->prompt).turns;
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].role, "system");
  EXPECT_EQ(turns[1].content, "u");
}

TEST(GrpcCodec, ReadsToolsAndWhatTemplatesSee) {
  const auto call = FromProto(Parse(R"(chat {
      messages { role: "assistant" content: "c" name: "n" reasoning_content: "r"
                 tool_calls { id: "1" name: "f" arguments: "{}" } }
      messages { role: "tool" content: "5" tool_call_id: "1" }
      tools { name: "f" description: "d" parameters: "{}" strict: true }
      tool_choice: "function" tool_choice_name: "f" parallel_tool_calls: false
      documents: "[]" chat_template_kwargs: "{}" continue_final_message: true
      reasoning_effort: "low"
      split_reasoning: false include_reasoning: false })"));
  ASSERT_TRUE(call.ok());
  const auto& chat = std::get<Conversation>(call->prompt);
  ASSERT_EQ(chat.turns.size(), 2u);
  EXPECT_EQ(chat.turns[0].name, "n");
  EXPECT_EQ(chat.turns[0].reasoning_content, "r");
  ASSERT_EQ(chat.turns[0].tool_calls.size(), 1u);
  EXPECT_EQ(chat.turns[0].tool_calls[0].id, "1");
  EXPECT_EQ(chat.turns[0].tool_calls[0].name, "f");
  EXPECT_EQ(chat.turns[0].tool_calls[0].arguments, "{}");
  EXPECT_EQ(chat.turns[1].tool_call_id, "1");
  ASSERT_EQ(chat.tools.size(), 1u);
  EXPECT_EQ(chat.tools[0].name, "f");
  EXPECT_EQ(chat.tools[0].description, "d");
  EXPECT_EQ(chat.tools[0].parameters, "{}");
  EXPECT_TRUE(chat.tools[0].strict);
  EXPECT_EQ(chat.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(chat.chosen_tool, "f");
  EXPECT_FALSE(chat.parallel_tool_calls);
  EXPECT_EQ(chat.documents, "[]");
  EXPECT_EQ(chat.template_kwargs, "{}");
  EXPECT_EQ(chat.reasoning_effort, "low");
  EXPECT_TRUE(chat.continue_final_message);
  EXPECT_FALSE(chat.add_generation_prompt);
  EXPECT_FALSE(chat.split_reasoning);
  EXPECT_FALSE(chat.include_reasoning);
  const auto plain = FromProto(Parse(R"(chat { messages { role: "user" content: "u" } })"));
  EXPECT_TRUE(std::get<Conversation>(plain->prompt).parallel_tool_calls);
  EXPECT_TRUE(std::get<Conversation>(plain->prompt).add_generation_prompt);
  EXPECT_EQ(ErrorField(FromProto(Parse(R"(chat { tool_choice: "all" })")).status()), "tool_choice");
}

TEST(GrpcCodec, CallsEndAChoice) {
  v1::Finish finish;
  ToProto(ChoiceEnd{.has_tool_calls = true}, &finish);
  EXPECT_EQ(finish.reason(), v1::FINISH_REASON_TOOL_CALLS);
  ToProto(ChoiceEnd{.reason = FinishReason::kLength, .has_tool_calls = true}, &finish);
  EXPECT_EQ(finish.reason(), v1::FINISH_REASON_LENGTH);
}

TEST(GrpcCodec, RefusesShapesByName) {
  EXPECT_EQ(ErrorField(FromProto(v1::GenerateRequest()).status()), "prompt");
  v1::GenerateRequest messages;
  for (int i = 0; i < 20'000; ++i) messages.mutable_chat()->add_messages();
  EXPECT_EQ(codec::DetailsOf(ToGrpcStatus(FromProto(messages).status())).field, "chat.messages");
  v1::GenerateRequest stops;
  stops.set_text("x");
  for (int i = 0; i < 2'000; ++i) stops.mutable_stop()->add_strings();
  EXPECT_EQ(ErrorField(FromProto(stops).status()), "stop.strings");
}

TEST(GrpcCodec, ErrorsNameFieldsAsTheProtoDoes) {
  const grpc::Status status = ToGrpcStatus(InvalidField("temperature", "too hot"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(codec::DetailsOf(status).field, "sampling.temperature");
  EXPECT_EQ(codec::DetailsOf(status).reason, kInvalidValue);
  EXPECT_EQ(codec::DetailsOf(ToGrpcStatus(InvalidField("model", "?"))).field, "model");
  EXPECT_EQ(codec::DetailsOf(ToGrpcStatus(InvalidField("messages[3].role", "?"))).field,
            "chat.messages[3].role");
}

TEST(GrpcCodec, WritesATokenWithItsAlternatives) {
  const std::string bytes = "\xe2\x82";  // part of a character
  v1::PositionLogprobs position;
  ToProto(
      {.token = 7, .logprob = -0.5f, .top = {{7, -0.5f}, {9, -1.5f}}},
      [&](TokenId id) { return id == 7 ? std::string_view(bytes) : std::string_view(); },
      &position);
  EXPECT_EQ(position.chosen().token_id(), 7);
  EXPECT_EQ(position.chosen().logprob(), -0.5f);
  EXPECT_EQ(position.chosen().token(), bytes);
  ASSERT_EQ(position.top_size(), 2);
  EXPECT_EQ(position.top(1).token_id(), 9);
  EXPECT_EQ(position.top(1).token(), "");
}

}  // namespace
}  // namespace flotilla::router
