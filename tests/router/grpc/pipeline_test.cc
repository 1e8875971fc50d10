// gRPC frontend, InferenceService, tokenizer and Engine seam together, over a
// FakeEngine with scripted answers.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "model/checkpoint.h"
#include "model/text/tokenizer.h"
#include "proto/codec/status.h"
#include "router/grpc/server.h"
#include "router/service.h"
#include "tests/support/fake_engine.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::router {
namespace {

std::vector<TokenId> Bytes(std::string_view text) {
  std::vector<TokenId> tokens;
  for (unsigned char byte : text) tokens.push_back(testing::kTinyFirstByte + byte);
  return tokens;
}

class GrpcPipelineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::byte> bytes = testing::TinyGguf();
    auto file = model::ParseCheckpoint(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    auto tokenizer = model::Tokenizer::Create(*(*file)->ReadTokenizer());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = std::make_unique<model::Tokenizer>(*std::move(tokenizer));
    service_ = InferenceService::Create({}, &clock_);
    service_->AddModel({.id = "tiny", .engine = &engine_, .tokenizer = tokenizer_.get()});
    auto server = GrpcServer::Start({.port = 0}, service_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Inference::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  // Reads until the stream ends; `text` gets all deltas.
  static grpc::Status ReadAll(grpc::ClientReader<v1::GenerateResponse>& reader, std::string& text,
                              std::vector<v1::Finish>& finishes) {
    v1::GenerateResponse message;
    while (reader.Read(&message)) {
      for (const auto& delta : message.deltas()) text += delta.text();
      for (const auto& finish : message.finishes()) finishes.push_back(finish);
    }
    return reader.Finish();
  }

  const SteadyClock clock_;
  testing::FakeEngine engine_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcPipelineTest, TextInTextOut) {
  engine_.Script({.tokens = Bytes("caf\xc3\xa9 STOP never")});
  v1::GenerateRequest request;
  request.set_model("tiny");
  request.set_text("hello");
  request.mutable_stop()->add_strings("STOP");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  std::string text;
  std::vector<v1::Finish> finishes;
  const grpc::Status status = ReadAll(*reader, text, finishes);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(text, "caf\xc3\xa9 ");
  ASSERT_EQ(finishes.size(), 1u);
  EXPECT_EQ(finishes[0].reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(finishes[0].stop_string(), "STOP");
  ASSERT_EQ(engine_.submitted().size(), 1u);
  EXPECT_FALSE(engine_.submitted()[0].prompt.empty());
}

// The choices of a stream that ended well, in order.
struct Choice {
  std::string text;
  v1::Finish finish;
};
std::vector<Choice> ReadChoices(grpc::ClientReader<v1::GenerateResponse>& reader, int count) {
  std::vector<Choice> choices(count);
  v1::GenerateResponse message;
  while (reader.Read(&message)) {
    for (const auto& delta : message.deltas()) choices.at(delta.choice()).text += delta.text();
    for (const auto& finish : message.finishes()) choices.at(finish.choice()).finish = finish;
  }
  const grpc::Status status = reader.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return choices;
}

TEST_F(GrpcPipelineTest, SeveralChoicesAndTheBestOfThem) {
  v1::GenerateRequest request;
  request.set_model("tiny");
  request.set_text("hello");
  request.set_n(2);
  for (const bool best : {false, true}) {
    engine_.Script(
        {.sequences = {{Bytes("one"), -2.0f}, {Bytes("two"), -1.0f}, {Bytes("three"), -0.5f}}});
    if (best) request.set_best_of(3);
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    const auto choices = ReadChoices(*reader, 2);
    EXPECT_EQ(choices[0].text, best ? "three" : "one");
    EXPECT_EQ(choices[1].text, "two");
    EXPECT_EQ(choices[0].finish.has_score(), best);
    EXPECT_EQ(choices[1].finish.score(), best ? -1.0f : 0.0f);
    EXPECT_EQ(choices[1].finish.reason(), v1::FINISH_REASON_STOP);
  }
}

TEST_F(GrpcPipelineTest, BeamSearch) {
  engine_.Script({.sequences = {{Bytes("best"), -1, -0.5f}, {Bytes("second"), -1, -0.75f}}});
  v1::GenerateRequest request;
  request.set_model("tiny");
  request.set_text("hello");
  request.set_n(2);
  request.set_best_of(4);
  request.mutable_beam_search()->set_early_stopping(v1::BeamSearch::EARLY_STOPPING_ALWAYS);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  const auto choices = ReadChoices(*reader, 2);
  EXPECT_EQ(choices[0].text, "best");
  EXPECT_EQ(choices[0].finish.score(), -0.5f);
  EXPECT_EQ(choices[1].text, "second");
  EXPECT_EQ(choices[1].finish.score(), -0.75f);
  ASSERT_EQ(engine_.submitted().size(), 1u);
  EXPECT_EQ(engine_.submitted()[0].beam, (BeamOptions{4, 1.0f, BeamOptions::EarlyStopping::kTrue}));
}

TEST_F(GrpcPipelineTest, AFullEngineRefusesAtOnceWithAHint) {
  engine_.Script(
      {.refusal = absl::ResourceExhaustedError("the queue is full"), .retry_after_ms = 700});
  v1::GenerateRequest request;
  request.set_model("tiny");
  request.set_text("hello");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  std::string text;
  std::vector<v1::Finish> finishes;
  const grpc::Status status = ReadAll(*reader, text, finishes);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(codec::DetailsOf(status).retry_after_ms, 700);
}

TEST_F(GrpcPipelineTest, AnEngineErrorEndsTheCall) {
  engine_.Script({.tokens = Bytes("abcdef"), .error = absl::InternalError("lost"), .error_at = 3});
  v1::GenerateRequest request;
  request.set_model("tiny");
  request.mutable_token_ids()->add_ids(5);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  std::string text;
  std::vector<v1::Finish> finishes;
  EXPECT_EQ(ReadAll(*reader, text, finishes).error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(text, "abc");
}

TEST_F(GrpcPipelineTest, TooLongAPromptIsOutOfRange) {
  v1::GenerateRequest request;
  request.set_model("tiny");
  for (int i = 0; i < 10'000; ++i) request.mutable_token_ids()->add_ids(5);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  std::string text;
  std::vector<v1::Finish> finishes;
  const grpc::Status status = ReadAll(*reader, text, finishes);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(codec::DetailsOf(status).reason, kContextLengthExceeded);
}

TEST_F(GrpcPipelineTest, TokenizeAndBack) {
  const std::string original = "caf\xc3\xa9 <|im_end|>";
  v1::TokenizeRequest request;
  request.set_model("tiny");
  request.set_text(original);
  request.set_add_special_tokens(false);
  v1::TokenizeResponse tokens;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
  }
  for (const TokenId token : tokens.token_ids()) EXPECT_NE(token, testing::kTinyImEnd);
  v1::DetokenizeRequest back;
  back.set_model("tiny");
  *back.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Detokenize(&context, back, &text).ok());
  EXPECT_EQ(text.text(), original);
}

}  // namespace
}  // namespace flotilla::router
