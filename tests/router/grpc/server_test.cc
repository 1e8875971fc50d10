// The gRPC frontend over a scripted service, through a real socket.
#include "router/grpc/server.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/codec/status.h"
#include "router/errors.h"
#include "tests/router/grpc/server_fixture.h"

namespace flotilla::router {
namespace {

using Running = FakeService::Running;

TEST_F(GrpcServerTest, AGatewayMayNameTheTenant) {
  StartServer({.tenant_metadata = "x-tenant"});
  for (const char* tenant : {"a", ""}) {
    grpc::ClientContext context;
    if (*tenant != 0) {
      context.AddMetadata("x-tenant", "forged");
      context.AddMetadata("x-tenant", tenant);  // the gateway's comes last
    }
    auto reader = stub_->Generate(&context, TextRequest());
    const auto running = service_.NextStarted();
    EXPECT_EQ(running->api.tenant, tenant);
    Running::End(running, {});
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    EXPECT_TRUE(reader->Finish().ok());
  }
}

TEST_F(GrpcServerTest, StreamsFromAcceptedToUsage) {
  StartServer();
  v1::GenerateRequest request = TextRequest();
  request.set_return_token_ids(true);
  request.mutable_logprobs()->set_output_top(0);
  auto call = BeginCall(request);
  EXPECT_EQ(call->first.accepted().id(), call->running->id);
  EXPECT_EQ(call->first.accepted().prompt_tokens(), 3u);
  EXPECT_THAT(call->first.accepted().prompt_token_ids(), ::testing::ElementsAre(10, 11, 12));
  EXPECT_EQ(call->running->api.model, FakeService::kModel);

  SayText(call->running, "Hello", 1);
  SayText(call->running, "", 2);
  SayText(call->running, " \xe2\x82\xac", 3);
  EndWell(call->running, 3);
  const Received received = ReadAll(*call->reader);
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_EQ(received.text, "Hello \xe2\x82\xac");
  EXPECT_EQ(received.tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(received.logprobs, 3);
  ASSERT_EQ(received.finishes.size(), 1u);
  EXPECT_EQ(received.finishes[0].reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(received.usage.output_tokens(), 3u);
}

TEST_F(GrpcServerTest, PromptLogprobs) {
  StartServer();
  auto call = BeginCall(TextRequest());
  Running::Say(call->running, [](GenerationListener& listener) {
    listener.OnPromptScores({.first = 1, .tokens = {{.token = 'b', .logprob = -1}}});
  });
  v1::GenerateResponse message;
  ASSERT_TRUE(call->reader->Read(&message));
  EXPECT_EQ(message.prompt_logprobs().first(), 1u);
  EXPECT_EQ(message.prompt_logprobs().positions(0).chosen().token(), "b");
  EndWell(call->running, 0);
  EXPECT_EQ(ReadAll(*call->reader).text, "");
}

TEST_F(GrpcServerTest, ClientCancelBecomesOneCancel) {
  StartServer();
  auto call = BeginCall(TextRequest());
  SayText(call->running, "partial", 1);
  call->context.TryCancel();
  service_.AwaitAbandoned(1);
  EXPECT_EQ(call->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // What the engine says afterwards reaches nobody and nothing breaks.
  SayText(call->running, "late", 2);
  EndWell(call->running, 2);
}

TEST_F(GrpcServerTest, LostConnectionBecomesACancel) {
  StartServer();
  auto call = BeginCall(TextRequest());
  // gRPC closes the socket when the last call and the channel are gone.
  call->context.TryCancel();
  call->reader->Finish();
  call.reset();
  stub_.reset();
  channel_.reset();
  service_.AwaitAbandoned(1);
}

TEST_F(GrpcServerTest, TheCallsDeadlineIsTheRequests) {
  StartServer();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  auto reader = stub_->Generate(&context, TextRequest());
  const auto running = service_.NextStarted();
  ASSERT_TRUE(running->api.timeout_ms.has_value());
  EXPECT_GT(*running->api.timeout_ms, 0);
  EXPECT_LE(*running->api.timeout_ms, 300);
  EXPECT_EQ(ReadAll(*reader).text, "");
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  service_.AwaitAbandoned(1);
}

TEST_F(GrpcServerTest, AVeryLongDeadlineIsNoError) {
  StartServer();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1000));
  auto reader = stub_->Generate(&context, TextRequest());
  const auto running = service_.NextStarted();
  EXPECT_EQ(running->api.timeout_ms, RequestLimits().max_timeout_ms);
  EndWell(running, 0);
  ReadAll(*reader);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcServerTest, TheServersOwnDeadlineEndsTheCall) {
  StartServer();
  auto call = BeginCall(TextRequest());
  SayText(call->running, "so far", 1);
  Running::Say(call->running, [](GenerationListener& listener) {
    listener.OnChoiceEnd({.reason = FinishReason::kDeadline});
  });
  Running::End(call->running, {});
  EXPECT_EQ(ReadAll(*call->reader).text, "so far");
  EXPECT_EQ(call->reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(GrpcServerTest, RefusalsCarryARetryHint) {
  StartServer();
  service_.RefuseStart(WithRetryAfter(absl::ResourceExhaustedError("the queue is full"), 1500));
  const grpc::Status status = RefusedStatus(TextRequest());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "the queue is full");
  EXPECT_EQ(codec::DetailsOf(status).retry_after_ms, 1500);
}

TEST_F(GrpcServerTest, LateRefusalsEndTheCallWithTheirDetails) {
  StartServer();
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, TextRequest());
  Running::End(service_.NextStarted(), {.status = WithField(absl::OutOfRangeError("too long"),
                                                            "prompt", kContextLengthExceeded)});
  EXPECT_EQ(ReadAll(*reader).usages, 0);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(codec::DetailsOf(status).reason, kContextLengthExceeded);
}

TEST_F(GrpcServerTest, AFailureInTheMiddleKeepsWhatWasSaid) {
  StartServer();
  auto call = BeginCall(TextRequest());
  SayText(call->running, "first half", 1);
  Running::End(call->running, {.status = absl::InternalError("the worker group is gone")});
  EXPECT_EQ(ReadAll(*call->reader).text, "first half");
  EXPECT_EQ(call->reader->Finish().error_code(), grpc::StatusCode::INTERNAL);
}

TEST_F(GrpcServerTest, InvalidRequestsNameTheField) {
  StartServer();
  const grpc::Status no_prompt = RefusedStatus(v1::GenerateRequest());
  EXPECT_EQ(no_prompt.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(codec::DetailsOf(no_prompt).field, "prompt");

  v1::GenerateRequest hot = TextRequest();
  hot.mutable_sampling()->set_temperature(3);
  EXPECT_EQ(codec::DetailsOf(RefusedStatus(hot)).field, "sampling.temperature");

  v1::GenerateRequest many = TextRequest();
  many.set_n(FakeService::Limits().max_sequences + 1);
  EXPECT_EQ(codec::DetailsOf(RefusedStatus(many)).field, "n");

  v1::GenerateRequest beams = TextRequest();
  beams.mutable_beam_search()->set_length_penalty(100);
  EXPECT_EQ(codec::DetailsOf(RefusedStatus(beams)).field, "beam_search.length_penalty");
  beams.mutable_beam_search()->clear_length_penalty();
  beams.mutable_stop()->add_strings("x");
  EXPECT_EQ(codec::DetailsOf(RefusedStatus(beams)).field, "stop.strings");

  v1::GenerateRequest other = TextRequest();
  other.set_model("gpt-7");
  const grpc::Status not_found = RefusedStatus(other);
  EXPECT_EQ(not_found.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(codec::DetailsOf(not_found).reason, kModelNotFound);
}

TEST_F(GrpcServerTest, TooLargeARequestIsRefusedUnparsed) {
  StartServer({.max_request_bytes = 1000});
  EXPECT_EQ(RefusedStatus(TextRequest(std::string(2000, 'x'))).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(GrpcServerTest, AbortTakesTheInternalIdOnly) {
  StartServer();
  v1::GenerateRequest request = TextRequest();
  request.set_request_id("label");
  auto call = BeginCall(request);
  const auto abort = [&](const std::string& id) {
    grpc::ClientContext context;
    v1::AbortRequest abort_request;
    abort_request.set_id(id);
    v1::AbortResponse response;
    EXPECT_TRUE(stub_->Abort(&context, abort_request, &response).ok());
    return response.found();
  };
  EXPECT_FALSE(abort("label"));
  EXPECT_FALSE(abort(""));
  EXPECT_TRUE(abort(call->first.accepted().id()));
  const Received received = ReadAll(*call->reader);
  ASSERT_EQ(received.finishes.size(), 1u);
  EXPECT_EQ(received.finishes[0].reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_FALSE(abort(call->first.accepted().id()));
}

TEST_F(GrpcServerTest, AStalledClientIsCutOffAndGenerationNeverWaits) {
  StartServer({.stream_buffer_bytes = 1 << 20, .stall_timeout = absl::Milliseconds(50)});
  auto call = BeginCall(TextRequest());
  // More than sockets and flow-control windows hold.
  for (int i = 0; i < 64; ++i) SayText(call->running, std::string(1 << 20, 'x'), i);
  service_.AwaitAbandoned(1);
  ReadAll(*call->reader);
  EXPECT_EQ(call->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServerTest, WhenAllHoldTooMuchTheOneThatHoldsMostIsCutOff) {
  StartServer({.unread_bytes = 8 << 20, .patience = absl::ZeroDuration()});
  auto most = BeginCall(TextRequest()), little = BeginCall(TextRequest());
  const std::string piece(1 << 20, 'x');
  SayText(little->running, piece, 0);
  for (int i = 0; i < 16; ++i) SayText(most->running, piece, i);
  service_.AwaitAbandoned(1);
  EndWell(little->running, 1);
  EXPECT_EQ(ReadAll(*little->reader).text.size(), piece.size());
  EXPECT_TRUE(little->reader->Finish().ok());
  ReadAll(*most->reader);
  EXPECT_EQ(most->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServerTest, ASlowClientGetsEverything) {
  StartServer({.stream_buffer_bytes = 1 << 10});
  auto call = BeginCall(TextRequest());
  std::string expected;
  for (int i = 0; i < 2000; ++i) {
    const std::string piece = absl::StrCat("piece ", i, std::string(4000, '.'));
    expected += piece;
    SayText(call->running, piece, i);
  }
  EndWell(call->running, 2000);
  const Received received = ReadAll(*call->reader);
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_TRUE(received.text == expected);
  EXPECT_EQ(received.usages, 1);
}

TEST_F(GrpcServerTest, ManyStreamsLoseNothing) {
  StartServer();
  constexpr int kStreams = 64, kTokens = 200;
  std::vector<std::unique_ptr<Call>> calls;
  v1::GenerateRequest request = TextRequest();
  request.set_return_token_ids(true);
  for (int i = 0; i < kStreams; ++i) calls.push_back(BeginCall(request));
  for (int token = 0; token < kTokens; ++token) {
    for (const auto& call : calls) SayText(call->running, absl::StrCat(token, " "), token);
  }
  for (const auto& call : calls) EndWell(call->running, kTokens);
  for (const auto& call : calls) {
    const Received received = ReadAll(*call->reader);
    EXPECT_TRUE(call->reader->Finish().ok());
    ASSERT_EQ(received.tokens.size(), static_cast<std::size_t>(kTokens));
    for (int token = 0; token < kTokens; ++token) EXPECT_EQ(received.tokens[token], token);
    EXPECT_EQ(received.finishes.size(), 1u);
  }
}

}  // namespace
}  // namespace flotilla::router
