// The server's other methods, its health and reflection, and how it stops.
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
#include "tests/router/grpc/server_fixture.h"

namespace flotilla::router {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_EQ(codec::DetailsOf(status).field, "token_ids");
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
    EXPECT_EQ(info.model_sampling().temperature(), 0.5f);
    EXPECT_EQ(info.model_sampling().top_k(), 20);
    EXPECT_FALSE(info.model_sampling().has_top_p());
    EXPECT_TRUE(info.model_sampling_used());
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
}  // namespace flotilla::router
