// The client that connects again: what its handlers receive of each stream, and that Stop ends
// every wait.
#include "rpc/reconnecting_client.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"

#include "tests/rpc/scripted_server.h"

namespace flotilla::rpc {
namespace {

using Client = ReconnectingClient<ServerReflection, Request, Response>;

// Logs the calls: "open", messages, and statuses as "broken: CODE: text". Refuses "bad".
class Recorder final {
 public:
  Client::Handlers handlers() {
    return {.on_open = [this] { Add("open"); },
            .on_message =
                [this](const Response& message) {
                  Add(message.valid_host());
                  return message.valid_host() == "bad" ? absl::DataLossError("refused")
                                                       : absl::OkStatus();
                },
            .on_broken =
                [this](const absl::Status& why) {
                  Add(absl::StrCat("broken: ", absl::StatusCodeToString(why.code()), ": ",
                                   why.message()));
                }};
  }

  // Returns the log when it ends with `last`, and clears it.
  std::vector<std::string> Await(const std::string& last) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !log_.empty() && absl::StartsWith(log_.back(), last);
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), absl::Minutes(1))) << last;
    return std::exchange(log_, {});
  }
  // True: there is a call within `wait`.
  bool Called(absl::Duration wait) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !log_.empty(); };
    return mu_.AwaitWithTimeout(absl::Condition(&there), wait);
  }

 private:
  void Add(std::string call) {
    absl::MutexLock lock(&mu_);
    log_.push_back(std::move(call));
  }

  absl::Mutex mu_;
  std::vector<std::string> log_ ABSL_GUARDED_BY(mu_);
};

using Log = std::vector<std::string>;

class ReconnectingClientTest : public ScriptedServerTest {
 protected:
  void Start(absl::Duration retry = absl::Milliseconds(1)) {
    client_ =
        std::make_unique<Client>(PeerOptions{.address = absl::StrCat("127.0.0.1:", server_->port()),
                                             .retry = retry,
                                             .poller = poller_},
                                 &ServerReflection::Stub::PrepareAsyncServerReflectionInfo,
                                 "the script", recorder_.handlers());
    client_->Start();
  }

  Recorder recorder_;
  std::unique_ptr<Client> client_;  // after the recorder, which outlives it
};

TEST_F(ReconnectingClientTest, HoldsOneStreamAfterAnother) {
  Serve();
  Start();
  for (int stream = 0; stream < 3; ++stream) {
    recorder_.Await("open");
    client_->Send(Say("hello"));
    EXPECT_EQ(recorder_.Await("hello"), Log{"hello"});
    client_->Send(Say("end"));
    EXPECT_EQ(recorder_.Await("broken")[0], "broken: ABORTED: ended");
  }
}

TEST_F(ReconnectingClientTest, TriesAgainUntilSomebodyAnswers) {
  Serve();
  const std::uint16_t port = server_->port();
  server_->Stop(absl::ZeroDuration());
  Start();
  for (int attempt = 0; attempt < 3; ++attempt) {
    const Log log = recorder_.Await("broken: UNAVAILABLE");
    EXPECT_FALSE(absl::StrContains(absl::StrJoin(log, " "), "open"));
  }
  client_->Send(Say("nobody receives this"));
  Serve({.port = port});
  recorder_.Await("open");
  client_->Send(Say("hello"));
  EXPECT_EQ(recorder_.Await("hello"), Log{"hello"});
}

TEST_F(ReconnectingClientTest, AnEndWithoutAnErrorIsAnEndToo) {
  script_.on_message = [](auto& stream) { stream.Close(grpc::Status::OK); };
  Serve();
  Start();
  recorder_.Await("open");
  client_->Send(Say("hello"));
  EXPECT_EQ(recorder_.Await("broken"), Log{"broken: UNAVAILABLE: the script ended the stream"});
  recorder_.Await("open");
}

TEST_F(ReconnectingClientTest, AMessageThatIsRefusedEndsItsStream) {
  script_.on_message = [](auto& stream) {
    for (const char* text : {"good", "bad", "dropped", "dropped"}) stream.Send(Answer(text));
  };
  Serve();
  Start();
  recorder_.Await("open");
  client_->Send(Say("hello"));
  EXPECT_EQ(recorder_.Await("broken"), (Log{"good", "bad", "broken: DATA_LOSS: refused"}));
  recorder_.Await("open");
  client_->Send(Say("hello"));  // the next stream begins without the refusal
  EXPECT_EQ(recorder_.Await("broken"), (Log{"good", "bad", "broken: DATA_LOSS: refused"}));
}

TEST_F(ReconnectingClientTest, APeerThatRefusesTheCallerIsTriedLessOften) {
  script_.before_begin = [](auto& stream) {
    stream.Close({grpc::StatusCode::UNAUTHENTICATED, "who are you"});
  };
  Serve();
  Start();
  EXPECT_EQ(recorder_.Await("broken"), Log{"broken: UNAUTHENTICATED: who are you"});
  EXPECT_FALSE(recorder_.Called(absl::Milliseconds(100)));
}

TEST_F(ReconnectingClientTest, StopEndsAStreamAndNoHandlerIsCalled) {
  Serve();
  Start();
  recorder_.Await("open");
  client_->Stop();
  client_->Stop();
  script_.AwaitGone(1);
  client_->Send(Say("nobody receives this"));
  EXPECT_FALSE(recorder_.Called(absl::ZeroDuration()));
}

TEST_F(ReconnectingClientTest, StopEndsTheWaitBetweenAttempts) {
  Serve();
  server_->Stop(absl::ZeroDuration());
  Start(absl::Hours(1));
  recorder_.Await("broken");
  client_->Stop();
  EXPECT_FALSE(recorder_.Called(absl::ZeroDuration()));
}

}  // namespace
}  // namespace flotilla::rpc
