// A server whose streams do what a test's script says. The reflection protocol's messages serve
// as any others would.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "gtest/gtest.h"
#include "rpc/server.h"
#include "rpc/stream.h"

namespace flotilla::rpc {

using grpc::reflection::v1alpha::ServerReflection;
using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
using Response = grpc::reflection::v1alpha::ServerReflectionResponse;
using grpc::StatusCode;

inline Request Say(const std::string& text) {
  Request request;
  request.set_host(text);
  return request;
}
inline Response Answer(const std::string& text) {
  Response response;
  response.set_valid_host(text);
  return response;
}

// What the server's streams do and saw.
struct Script {
  std::function<void(ServerStream<Request, Response>&)> before_begin, on_message;
  bool refuse = false;  // at once, before it begins
  absl::Mutex mu;
  std::vector<std::string> heard ABSL_GUARDED_BY(mu);
  std::vector<std::thread::id> threads ABSL_GUARDED_BY(mu);
  int gone ABSL_GUARDED_BY(mu) = 0;

  void AwaitGone(int count) {
    absl::MutexLock lock(&mu);
    const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return gone >= count; };
    mu.Await(absl::Condition(&done));
  }
};

class Scripted final : public ServerStream<Request, Response> {
 public:
  Scripted(std::unique_ptr<Call> call, Script* script)
      : ServerStream(std::move(call)), script_(script) {
    if (script_->before_begin) script_->before_begin(*this);
    if (script_->refuse) {
      Close({StatusCode::ALREADY_EXISTS, "refused"});
    } else {
      Begin();
    }
  }

 private:
  bool OnMessage(const Request& message) override {
    {
      absl::MutexLock lock(&script_->mu);
      script_->heard.push_back(message.host());
      script_->threads.push_back(std::this_thread::get_id());
    }
    if (message.host() == "end") {
      Close({StatusCode::ABORTED, "ended"});
      return false;
    }
    if (script_->on_message) {
      script_->on_message(*this);
    } else {
      Send(Answer(message.host()));
    }
    return true;
  }
  void OnGone() override {
    absl::MutexLock lock(&script_->mu);
    ++script_->gone;
  }

  Script* const script_;
};

// A test with such a server.
class ScriptedServerTest : public ::testing::Test {
 protected:
  void Serve(const ListenOptions& options = {}) {
    server_.reset();
    service_ = std::make_unique<ServerReflection::AsyncService>();
    server_ = std::make_unique<Server>(options.poller);
    ASSERT_TRUE(server_->Listen(options, {service_.get()}).ok());
    server_->OnStream(service_.get(), &ServerReflection::AsyncService::RequestServerReflectionInfo,
                      [this](auto call) { new Scripted(std::move(call), &script_); });
  }

  const std::shared_ptr<Poller> poller_ = std::make_shared<Poller>();
  Script script_;
  std::unique_ptr<ServerReflection::AsyncService> service_;
  std::unique_ptr<Server> server_;
};

}  // namespace flotilla::rpc
