#include "worker/group/hosts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace flotilla::worker {
namespace {

// A rank sends a heartbeat every 100 ms, so silence of this length is no mere delay.
constexpr unsigned kUserTimeoutMs = 3000;
constexpr int kBacklog = 64;

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<sockaddr_in> SocketAddress(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", host, "' is no IPv4 address"));
  }
  return address;
}

}  // namespace

absl::StatusOr<std::string> AddressInNetwork(const std::string& network) {
  const std::vector<std::string> parts = absl::StrSplit(network, '/');
  in_addr base{};
  int bits = 0;
  if (parts.size() != 2 || inet_pton(AF_INET, parts[0].c_str(), &base) != 1 ||
      !absl::SimpleAtoi(parts[1], &bits) || bits < 1 || bits > 32) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", network, "' is no network, as 10.1.0.0/16 is one"));
  }
  const std::uint32_t mask = ~std::uint32_t{0} << (32 - bits);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return SystemError("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(all, freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in address;
    std::memcpy(&address, one->ifa_addr, sizeof(address));
    if (((ntohl(address.sin_addr.s_addr) ^ ntohl(base.s_addr)) & mask) != 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    return std::string(text);
  }
  return absl::NotFoundError(absl::StrCat("this host has no address in ", network));
}

void TuneTcp(const UniqueFd& socket) {
  const int yes = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& address) {
  const auto at = SocketAddress(address, 0);
  if (!at.ok()) return at.status();
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.ok() ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&*at), sizeof(*at)) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return SystemError(absl::StrCat("to listen on ", address));
  }
  return listener;
}

int PortOf(const UniqueFd& socket) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

absl::StatusOr<UniqueFd> ConnectTcp(const std::string& agent) {
  const std::vector<std::string> parts = absl::StrSplit(agent, ':');
  int port = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", agent, "' is not HOST:PORT"));
  }
  const auto at = SocketAddress(parts[0], static_cast<std::uint16_t>(port));
  if (!at.ok()) return at.status();
  UniqueFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection.ok() ||
      connect(connection.get(), reinterpret_cast<const sockaddr*>(&*at), sizeof(*at)) != 0) {
    return SystemError(absl::StrCat("no agent at ", agent));
  }
  TuneTcp(connection);
  return connection;
}

}  // namespace flotilla::worker
