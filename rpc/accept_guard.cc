#include "rpc/accept_guard.h"

#include <dlfcn.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "rpc/interposed.h"

struct grpc_resolved_address;

namespace flotilla::rpc {
namespace {

constexpr char kAccept[] = "_Z12grpc_accept4iP21grpc_resolved_addressii";
// In the last kShort descriptors, a new connection takes the place of another one; the last kGone
// are not for gRPC at all. They are as many as cli/frontends.cc leaves for all that is not HTTP,
// less those that files and HTTP's own reserve need.
constexpr std::uint64_t kShort = 192, kGone = 64;

std::uint64_t Without(std::uint64_t limit, std::uint64_t reserve) {
  return limit - std::min(reserve, limit * reserve / 1024);
}

AcceptGuard& Guard() {
  static auto* const guard = new AcceptGuard;  // gRPC's threads may outlive main
  return *guard;
}

}  // namespace

int AcceptGuard::Accept(absl::FunctionRef<int()> accept) {
  while (true) {
    const int fd = accept();
    if (fd < 0 && errno != EMFILE && errno != ENFILE) return -1;
    if (fd < 0) {
      if (DropOne(accept)) continue;
      errno = EAGAIN;
      return -1;
    }
    if (HasLeft(fd)) {
      close(fd);
      continue;
    }
    const std::uint64_t limit = DescriptorLimit(), number = static_cast<std::uint64_t>(fd);
    if (number >= Without(limit, kGone)) {
      close(fd);
      continue;
    }
    const bool is_short = number >= Without(limit, kShort);
    if (!is_short) spare_.Refill();  // another thread may have taken what it was refilled from
    absl::MutexLock lock(&mu_);
    if (is_short || accepted_.size() >= most_silent_) CloseOldestSilent();
    Remember(fd);
    return fd;
  }
}

bool AcceptGuard::DropOne(absl::FunctionRef<int()> accept) {
  spare_.Refill();  // another thread may have taken the number the last time
  if (!spare_.Release()) return false;
  const int fd = accept();
  if (fd >= 0) close(fd);
  spare_.Refill();
  return fd >= 0;
}

bool AcceptGuard::IsSilent(const Accepted& one) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  if (getpeername(one.fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return false;
  if (bytes != one.peer_bytes || std::memcmp(&peer, &one.peer, bytes) != 0) return false;
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(one.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // A kernel that does not count segments reports 0 for every connection. One that does has
  // counted those of the handshake.
  const bool counts =
      size >= offsetof(tcp_info, tcpi_segs_in) + sizeof(info.tcpi_segs_in) && info.tcpi_segs_in > 0;
  return counts && info.tcpi_bytes_received == 0;
}

bool AcceptGuard::HasLeft(int fd) {
  char byte = 0;
  const ssize_t bytes = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return bytes == 0 || (bytes < 0 && errno == ECONNRESET);
}

void AcceptGuard::Remember(int fd) {
  // Most connections have sent bytes before the next one comes, so the list stays short.
  while (!accepted_.empty() && !IsSilent(accepted_.front())) accepted_.pop_front();
  Accepted one{.fd = fd, .peer = {}, .peer_bytes = sizeof(sockaddr_storage)};
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&one.peer), &one.peer_bytes) == 0) {
    accepted_.push_back(one);
  }
}

void AcceptGuard::CloseOldestSilent() {
  while (!accepted_.empty()) {
    const Accepted one = accepted_.front();
    accepted_.pop_front();
    if (!IsSilent(one)) continue;
    shutdown(one.fd, SHUT_RDWR);  // gRPC sees its end, and closes it
    return;
  }
}

}  // namespace flotilla::rpc

// Replaces gRPC's function of this name.
int GuardedAccept(int listener, grpc_resolved_address* peer, int nonblock,
                  int cloexec) asm("_Z12grpc_accept4iP21grpc_resolved_addressii");

int GuardedAccept(int listener, grpc_resolved_address* peer, int nonblock, int cloexec) {
  using namespace flotilla::rpc;  // NOLINT: this function stands in for one of no namespace
  static const auto accept = reinterpret_cast<decltype(&GuardedAccept)>(dlsym(RTLD_NEXT, kAccept));
  return Guard().Accept([&] { return accept(listener, peer, nonblock, cloexec); });
}

namespace flotilla::rpc {

bool AcceptGuard::InPlace() {
  return IsInterposed(kAccept, reinterpret_cast<const void*>(&GuardedAccept));
}

}  // namespace flotilla::rpc
