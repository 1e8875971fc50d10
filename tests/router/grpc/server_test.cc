// The gRPC frontend over a scripted service, through a real socket.
#include "router/grpc/server.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "gtest/gtest.h"
#include "proto/codec/status.h"
#include "router/errors.h"
#include "tests/router/grpc/fake_service.h"

namespace flotilla {
namespace {

using testing::FakeService;
using Running = FakeService::Running;
using ::testing::HasSubstr;
using ::testing::Not;

class GrpcServerTest : public ::testing::Test {
 protected:
  void StartServer(GrpcOptions options = {}) {
    options.port = 0;
    auto server = GrpcServer::Start(options, &service_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = NewChannel();
    stub_ = v1::Inference::NewStub(channel_);
  }

  std::shared_ptr<grpc::Channel> NewChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  static v1::GenerateRequest TextRequest(const std::string& text = "hi") {
    v1::GenerateRequest request;
    request.set_model(FakeService::kModel);
    request.set_text(text);
    return request;
  }

  // A call that has been started and accepted.
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    std::shared_ptr<Running> running;
    v1::GenerateResponse first;
  };
  std::unique_ptr<Call> BeginCall(const v1::GenerateRequest& request) {
    auto call = std::make_unique<Call>();
    call->reader = stub_->Generate(&call->context, request);
    call->running = service_.NextStarted();
    Running::Say(call->running, [](GenerationListener& listener) {
      listener.OnPrompt({.tokens = {10, 11, 12}});
      listener.OnAccepted();
    });
    EXPECT_TRUE(call->reader->Read(&call->first));
    return call;
  }

  // The status of a call that says nothing first.
  grpc::Status RefusedStatus(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    EXPECT_FALSE(reader->Read(&response));
    return reader->Finish();
  }

  static void SayText(const std::shared_ptr<Running>& running, std::string text, TokenId token) {
    Running::Say(running, [text = std::move(text), token](GenerationListener& listener) {
      listener.OnDelta({.text = text, .tokens = {{.id = token, .logprob = -0.25f}}});
    });
  }
  static void EndWell(const std::shared_ptr<Running>& running, std::uint32_t output_tokens) {
    Running::Say(running, [](GenerationListener& listener) {
      listener.OnChoiceEnd({.reason = ChoiceFinish::kLength});
    });
    Running::End(running, {.usage = {.prompt_tokens = 3, .output_tokens = output_tokens}});
  }

  FakeService service_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// Everything a stream said, put together.
struct Received {
  std::string text;
  std::vector<TokenId> tokens;
  int logprobs = 0;
  std::vector<v1::Finish> finishes;
  int usages = 0;
  v1::Usage usage;

  void Add(const v1::GenerateResponse& message) {
    EXPECT_EQ(usages, 0) << "a message after the last one";
    for (const auto& delta : message.deltas()) {
      text += delta.text();
      tokens.insert(tokens.end(), delta.token_ids().begin(), delta.token_ids().end());
      logprobs += delta.logprobs_size();
    }
    for (const auto& finish : message.finishes()) finishes.push_back(finish);
    if (message.has_usage()) {
      usage = message.usage();
      ++usages;
    }
  }
};

Received ReadAll(grpc::ClientReader<v1::GenerateResponse>& reader) {
  Received received;
  v1::GenerateResponse message;
  while (reader.Read(&message)) received.Add(message);
  return received;
}

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
    listener.OnPromptScores({.first = 1, .tokens = {{.id = 'b', .logprob = -1}}});
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
    listener.OnChoiceEnd({.reason = ChoiceFinish::kDeadline});
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
  EXPECT_EQ(DetailsOf(status).retry_after_ms, 1500);
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
  EXPECT_EQ(DetailsOf(status).reason, kContextLengthExceeded);
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
  EXPECT_EQ(DetailsOf(no_prompt).field, "prompt");

  v1::GenerateRequest hot = TextRequest();
  hot.mutable_sampling()->set_temperature(3);
  EXPECT_EQ(DetailsOf(RefusedStatus(hot)).field, "sampling.temperature");

  v1::GenerateRequest many = TextRequest();
  many.set_n(FakeService::Limits().max_sequences + 1);
  EXPECT_EQ(DetailsOf(RefusedStatus(many)).field, "n");

  v1::GenerateRequest beams = TextRequest();
  beams.mutable_beam_search()->set_length_penalty(100);
  EXPECT_EQ(DetailsOf(RefusedStatus(beams)).field, "beam_search.length_penalty");
  beams.mutable_beam_search()->clear_length_penalty();
  beams.mutable_stop()->add_strings("x");
  EXPECT_EQ(DetailsOf(RefusedStatus(beams)).field, "stop.strings");

  v1::GenerateRequest other = TextRequest();
  other.set_model("gpt-7");
  const grpc::Status not_found = RefusedStatus(other);
  EXPECT_EQ(not_found.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(not_found).reason, kModelNotFound);
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

TEST_F(GrpcServerTest, TokenizeAndDetokenize) {
  StartServer();
  v1::TokenizeRequest request;
  request.set_model(FakeService::kModel);
  request.set_text("ab");
  v1::TokenizeResponse tokens;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
    EXPECT_THAT(tokens.token_ids(), ::testing::ElementsAre(257, 'a', 'b'));
  }
  {
    grpc::ClientContext context;
    request.set_add_special_tokens(false);
    request.set_parse_special(true);
    ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
    EXPECT_THAT(tokens.token_ids(), ::testing::ElementsAre(256, 'a', 'b'));
  }
  v1::DetokenizeRequest back;
  back.set_model(FakeService::kModel);
  back.add_token_ids('h');
  back.add_token_ids('i');
  v1::DetokenizeResponse text;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Detokenize(&context, back, &text).ok());
    EXPECT_EQ(text.text(), "hi");
  }
  back.add_token_ids(-5);
  grpc::ClientContext context;
  const grpc::Status status = stub_->Detokenize(&context, back, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field, "token_ids");
}

TEST_F(GrpcServerTest, Models) {
  StartServer();
  {
    grpc::ClientContext context;
    v1::ListModelsResponse models;
    ASSERT_TRUE(stub_->ListModels(&context, {}, &models).ok());
    EXPECT_THAT(models.models(), ::testing::ElementsAre(FakeService::kModel));
  }
  v1::GetModelInfoResponse info;
  {
    grpc::ClientContext context;
    v1::GetModelInfoRequest request;
    request.set_model(FakeService::kModel);
    ASSERT_TRUE(stub_->GetModelInfo(&context, request, &info).ok());
    EXPECT_EQ(info.model(), FakeService::kModel);
    EXPECT_EQ(info.max_context(), 4096u);
    EXPECT_EQ(info.max_sequences(), 8u);
    EXPECT_EQ(info.numerics_id(), 0xF00Du);
    EXPECT_TRUE(info.bit_exact());
  }
  v1::GetModelInfoRequest other;
  other.set_model("other");
  grpc::ClientContext context;
  EXPECT_EQ(stub_->GetModelInfo(&context, other, &info).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcServerTest, HealthFollowsReadiness) {
  using grpc::health::v1::HealthCheckResponse;
  StartServer();
  auto health = grpc::health::v1::Health::NewStub(channel_);
  const auto check = [&](const std::string& name) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(name);
    HealthCheckResponse response;
    const grpc::Status status = health->Check(&context, request, &response);
    return status.ok() ? static_cast<int>(response.status()) : -status.error_code();
  };
  EXPECT_EQ(check(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(check("flotilla.v1.Inference"), HealthCheckResponse::SERVING);
  EXPECT_EQ(check("nonsense"), -grpc::StatusCode::NOT_FOUND);

  grpc::ClientContext context;
  auto watch = health->Watch(&context, {});
  HealthCheckResponse seen;
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthCheckResponse::SERVING);
  service_.ready = false;
  EXPECT_EQ(check(""), HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthCheckResponse::NOT_SERVING);
  context.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// Asks reflection for the list of services, with the request's bytes by hand.
std::string ListServices(const std::shared_ptr<grpc::Channel>& channel, grpc::Status& status) {
  const grpc::internal::RpcMethod method(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::Slice bytes(std::string("\x3a\x00", 2));  // list_services: ""
  const grpc::ByteBuffer request(&bytes, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(), method, &context, request, &response);
  std::string text;
  std::vector<grpc::Slice> slices;
  if (status.ok() && response.Dump(&slices).ok()) {
    for (const auto& slice : slices) {
      text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  return text;
}

TEST_F(GrpcServerTest, ReflectionOnLoopbackOnly) {
  StartServer();
  grpc::Status status;
  EXPECT_THAT(ListServices(channel_, status), HasSubstr("flotilla.v1.Inference"));
  EXPECT_TRUE(status.ok()) << status.error_message();
  StartServer({.host = "0.0.0.0"});
  ListServices(channel_, status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(GrpcServerTest, StopCancelsWhatRuns) {
  StartServer();
  auto call = BeginCall(TextRequest());
  server_->Stop(absl::ZeroDuration());
  service_.AwaitAbandoned(1);
  ReadAll(*call->reader);
  EXPECT_FALSE(call->reader->Finish().ok());
  EXPECT_FALSE(RefusedStatus(TextRequest()).ok());
  server_->Stop(absl::ZeroDuration());
}

TEST_F(GrpcServerTest, StopLetsCallsEndWithinItsGrace) {
  StartServer();
  auto call = BeginCall(TextRequest());
  std::thread stopper([&] { server_->Stop(absl::Seconds(60)); });
  SayText(call->running, "to the end", 1);
  EndWell(call->running, 1);
  EXPECT_EQ(ReadAll(*call->reader).text, "to the end");
  EXPECT_TRUE(call->reader->Finish().ok());
  stopper.join();
}

TEST_F(GrpcServerTest, ATakenPortIsAnError) {
  StartServer();
  const auto second = GrpcServer::Start({.port = server_->port()}, &service_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat(server_->port())));
  EXPECT_THAT(server_->address(), HasSubstr("127.0.0.1:"));
}

}  // namespace
}  // namespace flotilla
