#include "rpc/ports.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace flotilla::rpc {
namespace {

// Returns 0, or the errno of the call that the system refuses. It binds but does not listen, so
// that no client can connect to it.
int TryAddress(const addrinfo& at) {
  const int fd = socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol);
  if (fd < 0) return errno;
  // Servers set this, too, so that connections of a server that has ended do not hold its port.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int error = bind(fd, at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

absl::Status CheckPort(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int unknown = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found)) {
    return absl::InvalidArgumentError(gai_strerror(unknown));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const int error = TryAddress(*found);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {  // one is enough
    if ((at == found ? error : TryAddress(*at)) == 0) return absl::OkStatus();
  }
  const bool other_port_may_do = error == EADDRINUSE || error == EACCES;
  return other_port_may_do ? absl::UnavailableError(std::strerror(error))
                           : absl::InvalidArgumentError(std::strerror(error));
}

absl::Status CannotListen(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  std::uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) port = 0;
  const absl::Status cause = CheckPort(host, static_cast<std::uint16_t>(port));
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, cause.ok() ? "" : ": ",
                                             cause.ok() ? "" : cause.message()));
}

}  // namespace flotilla::rpc
