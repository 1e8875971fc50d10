#include "rpc/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "rpc/endpoint.h"

namespace flotilla::rpc {
namespace {

// A socket for one look, and the address of a name.
class Look {
 public:
  explicit Look(const std::string& name)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    address_.sun_family = AF_UNIX;
    if (1 + name.size() > sizeof(address_.sun_path)) return;
    std::copy(name.begin(), name.end(), address_.sun_path + 1);  // after a zero: abstract
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  ~Look() {
    if (fd_ >= 0) close(fd_);
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

  bool Bind() { return usable() && bind(fd_, address(), length_) == 0; }
  // To a process of this one's user.
  bool ConnectToOwn() {
    if (!usable() || connect(fd_, address(), length_) != 0) return false;
    ucred peer{};
    socklen_t size = sizeof(peer);
    return getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
  }

 private:
  bool usable() const { return fd_ >= 0 && length_ > 0; }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  const int fd_;
  sockaddr_un address_{};
  socklen_t length_ = 0;  // 0: the name is too long
};

std::string Name(const std::string& address) { return absl::StrCat("flotilla-", address); }
std::string Target(const std::string& name) { return absl::StrCat("unix-abstract:", name); }

}  // namespace

std::optional<std::string> LocalSocketToListen(const std::string& host, int port) {
  if (port == 0 || !IsLoopback(host)) return std::nullopt;
  const std::string name = Name(JoinAddress(host, port));
  if (!Look(name).Bind()) return std::nullopt;
  return Target(name);
}

std::optional<std::string> LocalSocketToDial(const std::string& address) {
  const std::string name = Name(address);
  if (!Look(name).ConnectToOwn()) return std::nullopt;
  return Target(name);
}

}  // namespace flotilla::rpc
