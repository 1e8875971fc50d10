// The gRPC frontend with keys.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "router/grpc/server.h"
#include "router/key_gate.h"
#include "tests/router/grpc/fake_service.h"
#include "tests/support/log_lines.h"
#include "tests/support/manual_clock.h"
#include "tests/support/secret_files.h"

namespace flotilla::router {
namespace {

using grpc::StatusCode;

const std::string kKey = "sk-0123456789abcdef";

class GrpcKeysTest : public ::testing::Test {
 protected:
  GrpcKeysTest() {
    gate_ = *KeyGate::Open(
        {.path = files_.Write("keys", "alice " + kKey), .clock = &clock_, .log = &log_.logger()},
        nullptr);
    server_ = *GrpcServer::Start({.port = 0, .gate = gate_.get()}, &service_);
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                   grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
  }

  testing::SecretFiles files_;
  testing::LogLines log_;
  testing::ManualClock clock_;
  FakeService service_;
  std::unique_ptr<KeyGate> gate_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcKeysTest, WithoutAKeyNothingReachesTheService) {
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, {});
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(status.error_message(), "an API key is needed: Authorization: Bearer KEY");
  grpc::ClientContext wrong;
  wrong.AddMetadata("authorization", "Bearer " + kKey + "x");
  v1::ListModelsResponse models;
  EXPECT_EQ(stub_->ListModels(&wrong, {}, &models).error_message(), "the API key is not valid");
}

TEST_F(GrpcKeysTest, TheOwnerOfTheKeyIsTheTenant) {
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + kKey);
  context.AddMetadata("x-tenant", "forged");
  v1::GenerateRequest request;
  request.set_model(FakeService::kModel);
  request.set_text("hi");
  auto reader = stub_->Generate(&context, request);
  const auto running = service_.NextStarted();
  EXPECT_EQ(running->api.tenant, "alice");
  FakeService::Running::End(running, {});
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcKeysTest, HealthNeedsNone) {
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse response;
  EXPECT_TRUE(grpc::health::v1::Health::NewStub(channel_)->Check(&context, {}, &response).ok());
}

}  // namespace
}  // namespace flotilla::router
