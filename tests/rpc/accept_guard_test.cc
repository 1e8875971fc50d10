// AcceptGuard with a process that may have 256 descriptors: from the 208th on a new
// connection takes the place of a silent one, from the 240th on it gets none.
#include "rpc/accept_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>

#include <cerrno>
#include <vector>

#include <gtest/gtest.h>

#include "common/rt/unique_fd.h"

namespace flotilla::rpc {
namespace {

constexpr int kLimit = 256, kShort = 208, kGone = 240;

class AcceptGuardTest : public ::testing::Test {
 protected:
  AcceptGuardTest() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    low.rlim_cur = kLimit;
    setrlimit(RLIMIT_NOFILE, &low);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
    EXPECT_EQ(listen(listener_.get(), 64), 0);
  }
  ~AcceptGuardTest() override { setrlimit(RLIMIT_NOFILE, &before_); }

  UniqueFd Connect() {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    UniqueFd client(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    return client;
  }
  int Accept() { return AcceptBy(guard_); }
  int AcceptBy(AcceptGuard& guard) {
    return guard.Accept([&] { return accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK); });
  }
  // Descriptors of no matter what, until the next one has this number.
  void FillUpTo(int number) {
    while (true) {
      UniqueFd one(open("/dev/null", O_RDONLY));
      ASSERT_TRUE(one.ok());
      if (one.get() >= number) return;
      others_.push_back(std::move(one));
    }
  }
  static bool Ended(const UniqueFd& client) {
    char byte;
    return recv(client.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

  rlimit before_{};
  AcceptGuard guard_;
  UniqueFd listener_;
  std::vector<UniqueFd> others_;
};

TEST_F(AcceptGuardTest, TheOldestSilentOneGivesWayWhenDescriptorsAreShort) {
  std::vector<UniqueFd> clients, accepted;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(Connect());
    accepted.emplace_back(Accept());
    ASSERT_TRUE(accepted.back().ok());
  }
  // The first speaks, and is no stranger any more.
  EXPECT_EQ(send(clients[0].get(), "x", 1, 0), 1);
  pollfd first{.fd = accepted[0].get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&first, 1, 10'000), 1);
  FillUpTo(kShort);
  clients.push_back(Connect());
  accepted.emplace_back(Accept());
  ASSERT_TRUE(accepted.back().ok());
  for (std::size_t i = 0; i < clients.size(); ++i) EXPECT_EQ(Ended(clients[i]), i == 1) << i;
  // A number that is another's by now is not closed for what it was.
  accepted[2] = UniqueFd(open("/dev/null", O_RDONLY));
  clients.push_back(Connect());
  accepted.emplace_back(Accept());
  ASSERT_TRUE(accepted.back().ok());
  EXPECT_TRUE(Ended(clients[3]));
  EXPECT_FALSE(Ended(clients[4]));
}

TEST_F(AcceptGuardTest, NoMoreThanSoManyAreSilent) {
  AcceptGuard guard(3);
  std::vector<UniqueFd> clients, accepted;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(Connect());
    accepted.emplace_back(AcceptBy(guard));
    ASSERT_TRUE(accepted.back().ok());
    if (i != 1) continue;
    EXPECT_EQ(send(clients[1].get(), "x", 1, 0), 1);
    pollfd second{.fd = accepted[1].get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&second, 1, 10'000), 1);
  }
  const std::vector<bool> ended = {true, false, true, false, false, false};
  for (std::size_t i = 0; i < clients.size(); ++i) EXPECT_EQ(Ended(clients[i]), ended[i]) << i;
}

TEST_F(AcceptGuardTest, WhoHasLeftIsNotAccepted) {
  Connect();  // and closes
  UniqueFd reset = Connect();
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(reset.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  const UniqueFd speaks = Connect();
  EXPECT_EQ(send(speaks.get(), "x", 1, 0), 1);
  shutdown(speaks.get(), SHUT_WR);
  const UniqueFd stays = Connect();
  reset.Reset();
  const UniqueFd first(Accept()), second(Accept());
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(Accept(), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(AcceptGuardTest, NobodyTakesTheLastDescriptors) {
  FillUpTo(kGone - 1);
  const UniqueFd client = Connect();  // the last number below
  const UniqueFd fd(Accept());
  EXPECT_EQ(fd.get(), -1);
  EXPECT_EQ(errno, EAGAIN);  // nobody waits any more
  EXPECT_TRUE(Ended(client));
}

TEST_F(AcceptGuardTest, AProcessWithoutDescriptorsRefusesWhoWaits) {
  FillUpTo(kLimit - 3);
  const UniqueFd first = Connect(), second = Connect();
  FillUpTo(kLimit - 1);
  others_.emplace_back(open("/dev/null", O_RDONLY));
  ASSERT_FALSE(UniqueFd(open("/dev/null", O_RDONLY)).ok());
  const UniqueFd fd(Accept());
  EXPECT_EQ(fd.get(), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(Ended(first));
  EXPECT_TRUE(Ended(second));
}

}  // namespace
}  // namespace flotilla::rpc
