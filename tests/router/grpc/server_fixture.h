// A GrpcServer in front of a FakeService, and a client.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "router/grpc/server.h"
#include "tests/router/grpc/fake_service.h"

namespace flotilla::router {

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

inline Received ReadAll(grpc::ClientReader<v1::GenerateResponse>& reader) {
  Received received;
  v1::GenerateResponse message;
  while (reader.Read(&message)) received.Add(message);
  return received;
}

class GrpcServerTest : public ::testing::Test {
 protected:
  using Running = FakeService::Running;

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
      listener.OnDelta({.text = text, .tokens = {{.token = token, .logprob = -0.25f}}});
    });
  }
  static void EndWell(const std::shared_ptr<Running>& running, std::uint32_t output_tokens) {
    Running::Say(running, [](GenerationListener& listener) {
      listener.OnChoiceEnd({.reason = FinishReason::kLength});
    });
    Running::End(running, {.usage = {.prompt_tokens = 3, .output_tokens = output_tokens}});
  }

  FakeService service_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace flotilla::router
