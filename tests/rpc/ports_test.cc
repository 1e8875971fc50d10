#include "rpc/ports.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "rpc/endpoint.h"

namespace flotilla::rpc {
namespace {

// A port of 127.0.0.1 that somebody listens on.
class BusyPort {
 public:
  BusyPort() {
    sockaddr_in at{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    number_ = ntohs(at.sin_port);
  }
  ~BusyPort() { close(fd_); }
  std::uint16_t number() const { return number_; }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::uint16_t number_ = 0;
};

TEST(PortsTest, TheSystemSaysWhatIsWrong) {
  EXPECT_TRUE(CheckPort("127.0.0.1", 0).ok());
  EXPECT_TRUE(CheckPort("localhost", 0).ok());
  const BusyPort busy;
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    EXPECT_EQ(CheckPort(host, busy.number()), absl::UnavailableError("Address already in use"));
  }
  EXPECT_EQ(CheckPort("192.0.2.1", 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckPort("no.such.invalid", 1).code(), absl::StatusCode::kInvalidArgument);
}

// Where another process came first.
TEST(PortsTest, AServerThatCannotListenSaysWhy) {
  const BusyPort busy;
  const auto listening = Listen({.port = busy.number()}, {});
  EXPECT_EQ(listening.status(),
            absl::UnavailableError(absl::StrCat("cannot listen on 127.0.0.1:", busy.number(),
                                                ": Address already in use")));
}

}  // namespace
}  // namespace flotilla::rpc
