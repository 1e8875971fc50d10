#include "rpc/bypass.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/auth/random_token.h"
#include "common/auth/secret_digest.h"

namespace flotilla::rpc {
namespace {

constexpr std::size_t kTokenSize = 64;
// Strangers who got in line before the server; it is one dial.
constexpr int kBacklog = 8;

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// Of the name in an offer: nobody can be made to dial anything else.
Address AddressOf(absl::string_view offer) {
  const std::string name = absl::StrCat("flotilla-", offer.substr(0, kTokenSize));
  Address of;
  of.address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), of.address.sun_path + 1);  // after a zero: abstract
  of.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return of;
}

UniqueFd Socket() {
  return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool OfThisUser(const UniqueFd& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

}  // namespace

absl::StatusOr<BypassOffer> BypassOffer::Make() {
  const auto name = RandomToken(), key = RandomToken();
  if (!name.ok()) return name.status();
  if (!key.ok()) return key.status();
  std::string text = absl::StrCat(*name, *key);
  const Address at = AddressOf(text);
  UniqueFd listener = Socket();
  if (!listener.ok() || bind(listener.get(), at.get(), at.length) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return absl::UnavailableError(absl::StrCat("a Unix socket: ", std::strerror(errno)));
  }
  return BypassOffer(std::move(text), std::move(listener));
}

absl::StatusOr<UniqueFd> BypassOffer::Accept() const {
  const SecretDigest key = SecretDigest::Of(std::string_view(text_).substr(kTokenSize));
  for (int i = 0; i <= kBacklog; ++i) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.ok()) break;
    if (!OfThisUser(socket)) continue;
    std::array<char, kTokenSize> said;  // the server has written it before it answered
    const ssize_t size = recv(socket.get(), said.data(), said.size(), 0);
    if (size == static_cast<ssize_t>(said.size()) &&
        SecretDigest::Of({said.data(), said.size()}) == key) {
      return socket;
    }
  }
  return absl::NotFoundError("nobody with the key has dialled");
}

absl::StatusOr<UniqueFd> TakeBypass(absl::string_view offer) {
  if (offer.size() != 2 * kTokenSize || !std::all_of(offer.begin(), offer.end(), [](char c) {
        return absl::ascii_isxdigit(static_cast<unsigned char>(c));
      })) {
    return absl::InvalidArgumentError("that is no offer of a socket");
  }
  const Address at = AddressOf(offer);
  UniqueFd socket = Socket();
  const absl::string_view key = offer.substr(kTokenSize);
  if (!socket.ok() || connect(socket.get(), at.get(), at.length) != 0 || !OfThisUser(socket) ||
      send(socket.get(), key.data(), key.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(key.size())) {
    return absl::NotFoundError("nobody of this host and user made that offer");
  }
  return socket;
}

}  // namespace flotilla::rpc
