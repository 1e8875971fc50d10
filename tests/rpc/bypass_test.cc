// Who gets the socket that goes past gRPC, and what a stream does with what comes on it.
#include "rpc/bypass.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rt/frames.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "rpc/endpoint.h"
#include "rpc/server.h"
#include "rpc/stream.h"

namespace flotilla::rpc {
namespace {

using grpc::StatusCode;
using grpc::reflection::v1alpha::ServerReflection;
using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

BypassOffer MakeOffer() {
  absl::StatusOr<BypassOffer> offer = BypassOffer::Make();
  EXPECT_TRUE(offer.ok()) << offer.status();
  return *std::move(offer);
}

// Dials the name in an offer as somebody might who saw it in /proc/net/unix.
UniqueFd DialName(const BypassOffer& offer) {
  const std::string name = "flotilla-" + offer.text().substr(0, 64);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) fd.Reset();
  return fd;
}

TEST(BypassOfferTest, JoinsTheTwo) {
  const BypassOffer offer = MakeOffer();
  EXPECT_TRUE(absl::IsNotFound(offer.Accept().status()));  // nobody yet
  const absl::StatusOr<UniqueFd> server = TakeBypass(offer.text());
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_EQ(send(server->get(), "hello", 5, 0), 5);
  const absl::StatusOr<UniqueFd> client = offer.Accept();
  ASSERT_TRUE(client.ok()) << client.status();
  char said[16] = {};
  EXPECT_EQ(recv(client->get(), said, sizeof(said), 0), 5);  // and nothing of the key
  EXPECT_EQ(std::string(said), "hello");
}

TEST(BypassOfferTest, IsOneOfThisHostAlone) {
  std::string gone;
  {
    const BypassOffer offer = MakeOffer();
    EXPECT_NE(MakeOffer().text(), offer.text());
    gone = offer.text();
  }
  EXPECT_TRUE(absl::IsNotFound(TakeBypass(gone).status()));
  for (const std::string& wrong : {std::string(), std::string(127, 'a'), std::string(129, 'a'),
                                   std::string(127, 'a') + "/", std::string(128, '\0')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(TakeBypass(wrong).status())) << wrong;
  }
}

TEST(BypassOfferTest, StrangersWithoutTheKeyAreLetGo) {
  const BypassOffer offer = MakeOffer();
  const UniqueFd silent = DialName(offer), wrong = DialName(offer), brief = DialName(offer);
  ASSERT_TRUE(silent.ok() && wrong.ok() && brief.ok());
  ASSERT_EQ(send(wrong.get(), std::string(64, 'a').data(), 64, 0), 64);
  ASSERT_EQ(send(brief.get(), offer.text().data() + 64, 10, 0), 10);
  EXPECT_TRUE(absl::IsNotFound(offer.Accept().status()));

  const UniqueFd another = DialName(offer);
  const absl::StatusOr<UniqueFd> server = TakeBypass(offer.text());
  ASSERT_TRUE(server.ok()) << server.status();
  const absl::StatusOr<UniqueFd> client = offer.Accept();
  ASSERT_TRUE(client.ok()) << client.status();
  char byte;
  for (const UniqueFd* one : {&silent, &wrong, &brief, &another}) {
    const ssize_t got = recv(one->get(), &byte, 1, 0);
    EXPECT_TRUE(got == 0 || (got < 0 && errno != EAGAIN)) << got;
  }
}

// The line is full of strangers: the server does not wait for them.
TEST(BypassOfferTest, AFullLineIsNoWay) {
  const BypassOffer offer = MakeOffer();
  std::vector<UniqueFd> line;
  do {
    line.push_back(DialName(offer));
    ASSERT_LT(line.size(), 100u);
  } while (line.back().ok());
  EXPECT_TRUE(absl::IsNotFound(TakeBypass(offer.text()).status()));
}

TEST(BypassOfferTest, AnotherUserIsNoEnd) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const BypassOffer offer = MakeOffer();
  // The key may leak; the user is still looked at, on both sides.
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(1);
    if (TakeBypass(offer.text()).ok()) _exit(2);
    const UniqueFd fd = DialName(offer);
    _exit(fd.ok() && send(fd.get(), offer.text().data() + 64, 64, 0) == 64 ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(absl::IsNotFound(offer.Accept().status()));
}

// Names are those of a network namespace, as another host or container has one.
TEST(BypassOfferTest, AnotherNetworkNamespaceIsAnotherHost) {
  const BypassOffer offer = MakeOffer();
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0) _exit(77);
    _exit(absl::IsNotFound(TakeBypass(offer.text()).status()) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this user makes no network namespaces";
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(TakeBypass(offer.text()).ok());
}

// A server that answers each message; streams and calls by hand at it.
class Echo final : public ServerStream<Request, Response> {
 public:
  explicit Echo(std::unique_ptr<Call> call) : ServerStream(std::move(call)) { Begin(); }

 private:
  bool OnMessage(const Request& message) override {
    Response response;
    response.set_valid_host(message.host());
    Send(std::move(response));
    return true;
  }
  void OnGone() override {}
};

class HostileClientTest : public testing::Test {
 protected:
  HostileClientTest() {
    EXPECT_TRUE(server_.Listen(ListenOptions{}, {&service_}).ok());
    server_.OnStream(&service_, &ServerReflection::AsyncService::RequestServerReflectionInfo,
                     [](auto call) { new Echo(std::move(call)); });
    stub_ =
        ServerReflection::NewStub(ConnectTo(absl::StrCat("127.0.0.1:", server_.port()), nullptr));
    context_.AddMetadata(kBypassMetadata, offer_.text());
    stream_ = stub_->ServerReflectionInfo(&context_);
    stream_->WaitForInitialMetadata();
    EXPECT_TRUE(context_.GetServerInitialMetadata().contains(kBypassMetadata));
    absl::StatusOr<UniqueFd> socket = offer_.Accept();
    EXPECT_TRUE(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
  }
  void Say(const std::string& bytes) {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  // How the server ends the stream.
  grpc::Status End() {
    Response response;
    EXPECT_FALSE(stream_->Read(&response));
    return stream_->Finish();
  }

  ServerReflection::AsyncService service_;
  Server server_{nullptr};
  const BypassOffer offer_ = MakeOffer();
  grpc::ClientContext context_;
  std::unique_ptr<ServerReflection::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
  UniqueFd socket_;
};

TEST_F(HostileClientTest, WhatIsNoMessageEndsTheStream) {
  Say(Frame("\xff\xff\xff"));
  const grpc::Status status = End();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "no message")) << status.error_message();
}

TEST_F(HostileClientTest, SoDoesAMessageAboveTheLimit) {
  Say("\xff\xff\xff\xff");
  const grpc::Status status = End();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "are allowed")) << status.error_message();
}

TEST_F(HostileClientTest, SoDoesASocketThatIsClosed) {
  socket_.Reset();
  EXPECT_EQ(End().error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(HostileClientTest, SoDoesAMessageOnTheWrongWay) {
  Request request;
  request.set_host("over gRPC");
  EXPECT_TRUE(stream_->Write(request));
  EXPECT_TRUE(End().ok());  // ended, and not answered
}

// Who reads nothing keeps nobody: what waits is dropped with the stream.
TEST_F(HostileClientTest, WhoReadsNothingIsInNobodysWay) {
  Request request;
  request.set_host(std::string(1 << 20, 'x'));
  const std::string frame = Frame(request.SerializeAsString());
  absl::string_view rest;
  for (int sent = 0; sent < 16;) {  // at most: the server reads on
    if (rest.empty()) rest = frame;
    const ssize_t put = send(socket_.get(), rest.data(), rest.size(), 0);
    if (put > 0) rest.remove_prefix(static_cast<std::size_t>(put));
    if (rest.empty()) ++sent;
  }
  server_.Stop(absl::ZeroDuration());
  EXPECT_FALSE(End().ok());
}

// A server that says that it took the offer, and did not.
TEST(HostileServerTest, ANameThatNobodyDialledEndsTheStream) {
  class Liar final : public ServerReflection::Service {
    grpc::Status ServerReflectionInfo(
        grpc::ServerContext* context,
        grpc::ServerReaderWriter<Response, Request>* stream) override {
      context->AddInitialMetadata(kTakenMetadata, "1");
      context->AddInitialMetadata(kBypassMetadata, "1");
      stream->SendInitialMetadata();
      Request request;
      stream->Read(&request);  // until the client ends it
      return grpc::Status::OK;
    }
  } liar;
  const absl::StatusOr<Listening> listening = Listen(ListenOptions{}, {&liar});
  ASSERT_TRUE(listening.ok());
  class Deaf final : public ClientStream<Request, Response>::Handler {
    void OnMessage(const Response&) override { ADD_FAILURE() << "nothing was sent"; }
  } deaf;
  const auto stub =
      ServerReflection::NewStub(ConnectTo(absl::StrCat("127.0.0.1:", listening->port), nullptr));
  ClientStream<Request, Response> stream(nullptr, &deaf);
  stream.Begin(stub->PrepareAsyncServerReflectionInfo(&stream.context(), stream.queue()));
  stream.Send(Request());
  EXPECT_EQ(stream.Wait().error_code(), StatusCode::CANCELLED);
  listening->server->Shutdown();
}

}  // namespace
}  // namespace flotilla::rpc
