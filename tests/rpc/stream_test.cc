// Streams over real connections: what arrives, how they end, and that one thread receives all
// of it.
#include "rpc/stream.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "rpc/endpoint.h"
#include "tests/rpc/scripted_server.h"

namespace flotilla::rpc {
namespace {

// A client, and what it heard.
class ReflectionClient final : private ClientStream<Request, Response>::Handler {
 public:
  ReflectionClient(std::shared_ptr<Poller> poller, int port)
      : stub_(ServerReflection::NewStub(ConnectTo(absl::StrCat("127.0.0.1:", port), nullptr))),
        stream_(std::move(poller), this) {
    stream_.Begin(stub_->PrepareAsyncServerReflectionInfo(&stream_.context(), stream_.queue()));
  }
  ClientStream<Request, Response>& stream() { return stream_; }
  void AwaitHeard(std::size_t count) {
    absl::MutexLock lock(&mu_);
    const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return heard_.size() >= count; };
    mu_.Await(absl::Condition(&done));
  }
  // After the end, or what was awaited.
  std::vector<std::string> heard() {
    absl::MutexLock lock(&mu_);
    return heard_;
  }
  std::thread::id thread() {
    absl::MutexLock lock(&mu_);
    return thread_;
  }
  bool opened() {
    absl::MutexLock lock(&mu_);
    return opened_;
  }

 private:
  void OnOpen() override {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(heard_.empty());
    opened_ = true;
  }
  void OnMessage(const Response& message) override {
    absl::MutexLock lock(&mu_);
    heard_.push_back(message.valid_host());
    thread_ = std::this_thread::get_id();
  }

  absl::Mutex mu_;
  bool opened_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::string> heard_ ABSL_GUARDED_BY(mu_);
  std::thread::id thread_ ABSL_GUARDED_BY(mu_);
  const std::unique_ptr<ServerReflection::Stub> stub_;
  ClientStream<Request, Response> stream_;
};

class StreamTest : public ScriptedServerTest {
 protected:
  std::unique_ptr<ReflectionClient> Connect() {
    return std::make_unique<ReflectionClient>(poller_, server_->port());
  }
};

TEST_F(StreamTest, CarriesMessagesInOrderBothWaysAtOnce) {
  Serve();
  auto client = Connect();
  std::vector<std::string> said;
  for (int i = 0; i < 1000; ++i) said.push_back(absl::StrCat(i));
  for (const std::string& text : said) client->stream().Send(Say(text));
  client->AwaitHeard(said.size());
  EXPECT_EQ(client->heard(), said);
  EXPECT_TRUE(client->opened());
  client->stream().Cancel();
  EXPECT_EQ(client->stream().Wait().error_code(), StatusCode::CANCELLED);
  script_.AwaitGone(1);
  absl::MutexLock lock(&script_.mu);
  EXPECT_EQ(script_.heard, said);
}

// The reason for the poller: one thread receives at both ends, if it is to.
TEST_F(StreamTest, OneThreadHearsWhatComesInAndWhatComesBack) {
  Serve({.poller = poller_});
  auto client = Connect();
  for (int i = 1; i <= 20; ++i) {
    client->stream().Send(Say("hello"));
    client->AwaitHeard(static_cast<std::size_t>(i));
  }
  {
    absl::MutexLock lock(&script_.mu);
    for (const std::thread::id id : script_.threads) EXPECT_EQ(id, client->thread());
  }
  EXPECT_NE(client->thread(), std::this_thread::get_id());
  client->stream().Cancel();
  client->stream().Wait();
}

TEST_F(StreamTest, WhatIsSentBeforeItBeginsWaits) {
  script_.before_begin = [](ServerStream<Request, Response>& stream) {
    std::thread([&] {
      for (int i = 0; i < 3; ++i) stream.Send(Answer(absl::StrCat(i)));
    }).join();
  };
  Serve();
  auto client = Connect();
  client->AwaitHeard(3);
  EXPECT_EQ(client->heard(), (std::vector<std::string>{"0", "1", "2"}));
  client->stream().Cancel();
  client->stream().Wait();
}

TEST_F(StreamTest, TheServersEndIsTheStatusThatTheClientGets) {
  Serve();
  auto client = Connect();
  for (const char* text : {"one", "end", "after"}) client->stream().Send(Say(text));
  const grpc::Status status = client->stream().Wait();
  EXPECT_EQ(status.error_code(), StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "ended");
  script_.AwaitGone(1);
  client->stream().Send(Say("nobody hears this"));
}

TEST_F(StreamTest, ARefusedStreamNeverOpens) {
  script_.refuse = true;
  Serve();
  auto client = Connect();
  client->stream().Send(Say("hello"));
  EXPECT_EQ(client->stream().Wait().error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_FALSE(client->opened());
  EXPECT_TRUE(client->heard().empty());
  script_.AwaitGone(1);
}

TEST_F(StreamTest, OneThatReachesNobodyEnds) {
  Serve();
  const int port = server_->port();
  server_->Stop(absl::ZeroDuration());
  ReflectionClient client(poller_, port);
  client.stream().Send(Say("hello"));
  EXPECT_EQ(client.stream().Wait().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_FALSE(client.opened());
}

// A client that says much and hears nothing: its writes are in the way of nobody's end.
TEST_F(StreamTest, EndsWhileMuchIsUnderWay) {
  script_.on_message = [](ServerStream<Request, Response>& stream) {
    stream.Send(Answer(std::string(1 << 20, 'x')));
  };
  Serve();
  std::vector<std::unique_ptr<ReflectionClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(Connect());
    for (int k = 0; k < 20; ++k) clients.back()->stream().Send(Say(std::string(1 << 20, 'y')));
  }
  clients[0]->AwaitHeard(1);
  clients[1]->stream().Cancel();
  clients[2]->stream().Send(Say("end"));
  EXPECT_EQ(clients[1]->stream().Wait().error_code(), StatusCode::CANCELLED);
  server_->Stop(absl::ZeroDuration());
  for (const auto& client : clients) EXPECT_FALSE(client->stream().Wait().ok());
  absl::MutexLock lock(&script_.mu);
  EXPECT_LE(script_.gone, 4);
}

// A client that writes and reads nothing: its answers wait, and others get theirs.
TEST_F(StreamTest, OneThatReadsNothingIsInNobodysWay) {
  script_.on_message = [](ServerStream<Request, Response>& stream) {
    stream.Send(Answer(std::string(1 << 20, 'x')));
  };
  Serve();
  const auto stub =
      ServerReflection::NewStub(ConnectTo(absl::StrCat("127.0.0.1:", server_->port()), nullptr));
  grpc::ClientContext context;
  const auto silent = stub->ServerReflectionInfo(&context);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(silent->Write(Say("hello")));
  auto client = Connect();
  for (std::size_t i = 1; i <= 20; ++i) {
    client->stream().Send(Say("hello"));
    client->AwaitHeard(i);
  }
  context.TryCancel();
  EXPECT_EQ(silent->Finish().error_code(), StatusCode::CANCELLED);
  client->stream().Cancel();
  client->stream().Wait();
}

TEST_F(StreamTest, AMessageAboveTheLimitEndsItsStreamAlone) {
  Serve();
  auto client = Connect(), other = Connect();
  client->stream().Send(Say(std::string(17 << 20, 'x')));
  EXPECT_FALSE(client->stream().Wait().ok());
  other->stream().Send(Say("hello"));
  other->AwaitHeard(1);
  other->stream().Cancel();
  other->stream().Wait();
}

// Calls that come while the server stops are served, refused or ended, and all are gone
// when Stop returns.
TEST_F(StreamTest, StopsWhileCallsCome) {
  for (int life = 0; life < 5; ++life) {
    Serve();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([this, port = server_->port()] {
        for (int k = 0; k < 10; ++k) {
          ReflectionClient client(poller_, port);
          client.stream().Send(Say("hello"));
          client.stream().Send(Say("end"));
          EXPECT_FALSE(client.stream().Wait().ok());
        }
      });
    }
    script_.AwaitGone(1);
    server_->Stop(absl::ZeroDuration());
    for (std::thread& thread : threads) thread.join();
    server_.reset();
    absl::MutexLock lock(&script_.mu);
    script_.gone = 0;
  }
}

// What the server has sent before it ends the stream arrives, unless it waits.
TEST_F(StreamTest, WhatCameBeforeTheEndIsHeard) {
  script_.on_message = [](ServerStream<Request, Response>& stream) {
    for (int i = 0; i < 100; ++i) stream.Send(Answer(absl::StrCat(i)));
  };
  Serve();
  for (int life = 0; life < 20; ++life) {
    auto client = Connect();
    client->stream().Send(Say("hello"));
    client->AwaitHeard(100);
    client->stream().Send(Say("end"));
    EXPECT_EQ(client->stream().Wait().error_code(), StatusCode::ABORTED);
    EXPECT_EQ(client->heard().size(), 100u);
  }
}

}  // namespace
}  // namespace flotilla::rpc
