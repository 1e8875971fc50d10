// Tests what a metrics port answers to Prometheus and to other clients.
#include "common/obs/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A client of 127.0.0.1.
class Client {
 public:
  explicit Client(std::uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  Client(const Client&) = delete;
  ~Client() { close(fd_); }

  void Send(const std::string& text) {
    (void)!send(fd_, text.data(), text.size(), MSG_NOSIGNAL);  // it may have been closed
  }
  // Reads what the server sends, until `end` has come or the server closes the connection.
  std::string Read(const std::string& end = "") {
    std::string text;
    while (end.empty() || text.find(end) == std::string::npos) {
      pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&one, 1, 30'000) <= 0) return text + "(nothing more came)";
      char bytes[4096];
      const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
      if (got <= 0) break;
      text.append(bytes, static_cast<std::size_t>(got));
    }
    return text;
  }
  std::string Ask(const std::string& text) {
    Send(text);
    return Read();
  }

 private:
  const int fd_;
};

class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() {
    metrics_.AddCounter("tea_cups_total", "Cups.").Increment(3);
    auto server = MetricsServer::Start("127.0.0.1:0", &metrics_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Ask(const std::string& text) { return Client(server_->port()).Ask(text); }

  Metrics metrics_{Metrics::Labels{}};
  std::unique_ptr<MetricsServer> server_;
};

constexpr char kGet[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n";

TEST_F(MetricsServerTest, AConnectionIsAnsweredAgainAndAgain) {
  Client client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.Send(absl::StrCat(kGet, "\r\n"));
    const std::string answer = client.Read("tea_cups_total 3\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  }
  client.Send(absl::StrCat(kGet, "Connection: close\r\n\r\n"));
  EXPECT_THAT(client.Read(), HasSubstr("tea_cups_total 3\n"));
}

TEST_F(MetricsServerTest, EverythingElseIsRefused) {
  EXPECT_THAT(Ask("GET /nope HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask("DELETE /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask(absl::StrCat(std::string(3, '\0'), "\r\n\r\n")), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask(absl::StrCat(kGet, std::string(9000, 'x'))), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.0\r\n\r\n"), HasSubstr("tea_cups_total 3\n"));
}

TEST_F(MetricsServerTest, ManyConnectionsThatSayNothingAreBounded) {
  {
    std::vector<std::unique_ptr<Client>> silent;
    for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<Client>(server_->port()));
    EXPECT_EQ(silent.front()->Read(), "");  // closed: it was silent for longest
    silent.back()->Send(absl::StrCat(kGet, "\r\n"));
    EXPECT_THAT(silent.back()->Read("tea_cups_total 3\n"), StartsWith("HTTP/1.1 200"));
    // A new connection replaces one of them.
    EXPECT_THAT(Ask("GET /metrics HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_THAT(Ask("GET /metrics HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(MetricsServerTest, HeadIsGetWithoutTheBody) {
  const std::string answer = Ask("HEAD /metrics HTTP/1.0\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: "));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

// A request that announces a body gets one answer.
TEST_F(MetricsServerTest, BodiesAreRefusedOnce) {
  for (const char* headers : {"Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: chunked\r\n",
                              "Content-Length: 3\r\n"}) {
    const std::string answer = Ask(absl::StrCat(kGet, headers, "\r\n0\r\n\r\n", kGet, "\r\n"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400")) << headers;
    EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos) << answer;
  }
}

TEST_F(MetricsServerTest, ItStopsWithConnectionsOpen) {
  Client client(server_->port());
  client.Send(absl::StrCat(kGet, "\r\n"));
  client.Read("tea_cups_total 3\n");
  server_.reset();
  EXPECT_EQ(client.Read(), "");
}

TEST(MetricsServerAddressTest, IsAHostAndAPort) {
  Metrics metrics{Metrics::Labels{}};
  const auto one = MetricsServer::Start("127.0.0.1:0", &metrics);
  ASSERT_TRUE(one.ok()) << one.status();
  const auto taken = MetricsServer::Start(absl::StrCat("127.0.0.1:", (*one)->port()), &metrics);
  EXPECT_TRUE(absl::IsUnavailable(taken.status())) << taken.status();
  EXPECT_TRUE(absl::IsUnavailable(MetricsServer::Start("240.0.0.1:0", &metrics).status()));
  EXPECT_TRUE(
      absl::IsUnavailable(MetricsServer::Start("no.such.host.invalid:0", &metrics).status()));
  EXPECT_FALSE(MetricsServer::Start("127.0.0.1:http", &metrics).ok());
}

}  // namespace
}  // namespace flotilla
