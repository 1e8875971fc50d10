// Which sockets count.
#include "rpc/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace flotilla::rpc {
namespace {

// A socket that listens under a name, as somebody else might; -1: the name is taken.
int TakeName(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 && listen(fd, 4) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

// An address of this process's own: names are the host's.
std::string Host() { return absl::StrCat("127.1.", getpid() >> 8 & 255, ".", getpid() & 255); }

TEST(LocalSocketTest, StandsBesideAPortOfItsOwnOnLoopback) {
  EXPECT_TRUE(LocalSocketToListen(Host(), 4711).has_value());
  EXPECT_TRUE(LocalSocketToListen("::1", 4711).has_value());
  EXPECT_FALSE(LocalSocketToListen(Host(), 0).has_value());
  EXPECT_FALSE(LocalSocketToListen("0.0.0.0", 4711).has_value());
  EXPECT_FALSE(LocalSocketToListen("10.0.0.1", 4711).has_value());
  EXPECT_FALSE(LocalSocketToListen("localhost" + std::string(200, 'x'), 4711).has_value());
}

TEST(LocalSocketTest, IsDialledWhenAProcessOfThisUserListensThere) {
  const std::string address = Host() + ":4712";
  EXPECT_FALSE(LocalSocketToDial(address).has_value());
  const int fd = TakeName("flotilla-" + address);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(LocalSocketToDial(address), "unix-abstract:flotilla-" + address);
  EXPECT_FALSE(LocalSocketToListen(Host(), 4712).has_value());  // taken
  EXPECT_FALSE(LocalSocketToDial(Host() + ":4713").has_value());
  close(fd);
  EXPECT_FALSE(LocalSocketToDial(address).has_value());
  EXPECT_FALSE(LocalSocketToDial(std::string(200, 'x')).has_value());
}

// Anybody on the host may take any name.
TEST(LocalSocketTest, IsNotDialledWhenAnotherUserTookTheName) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string address = Host() + ":4714";
  int ready[2], end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(end), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(end[1]);
    const bool taken = setuid(65534) == 0 && TakeName("flotilla-" + address) >= 0;
    const char told = taken ? 'y' : 'n';
    if (write(ready[1], &told, 1) != 1) _exit(1);
    char byte;
    _exit(read(end[0], &byte, 1) == 0 ? 0 : 1);  // until the parent closes it
  }
  char told = 0;
  ASSERT_EQ(read(ready[0], &told, 1), 1);
  EXPECT_EQ(told, 'y');
  EXPECT_FALSE(LocalSocketToDial(address).has_value());
  EXPECT_FALSE(LocalSocketToListen(Host(), 4714).has_value());
  for (const int fd : {ready[0], ready[1], end[0], end[1]}) close(fd);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace flotilla::rpc
