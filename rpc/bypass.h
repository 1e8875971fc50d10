// The way past gRPC between two processes of one host.
//
// A message on a gRPC stream costs each end several system calls and threads that wake:
// its frames go down and up the whole of TCP, a window update comes back for each, and
// that it was written is heard, too. Where both ends are on one host, messages of a stream
// go over a Unix socket of its own instead, with a system call at each end. The call itself
// stays: it says who may, whether the other end lives, and how the stream ends.
//
// The client listens under a random name of Linux's abstract namespace, which is seen in
// its network namespace only, and says name and key in the call's metadata. A server that
// has let the call in dials the name, writes the key, and says that it did in its initial
// metadata; one on another host finds nobody of that name, and messages go over gRPC. So
// who holds the socket has passed the call's proofs (rpc/credentials.h) on both sides, and
// both look at the user of the process behind it besides.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rt/unique_fd.h"

namespace flotilla::rpc {

// The client's offer by this metadata of the call; of the answer, that it was taken.
inline constexpr char kBypassMetadata[] = "flotilla-bypass";

// The client's side, for one call.
class BypassOffer {
 public:
  // Listens. UNAVAILABLE: the system has no socket or no random bytes.
  static absl::StatusOr<BypassOffer> Make();

  // What the metadata says: name and key, in hex.
  const std::string& text() const { return text_; }

  // The server's socket, which does not block, after the server has said that it took the
  // offer. NOT_FOUND: nobody with the key is there.
  absl::StatusOr<UniqueFd> Accept() const;

 private:
  BypassOffer(std::string text, UniqueFd listener)
      : text_(std::move(text)), listener_(std::move(listener)) {}

  std::string text_;
  UniqueFd listener_;
};

// The server's side: a socket, which does not block, to who made the offer.
// INVALID_ARGUMENT: that is no offer; NOT_FOUND: nobody of this host and this user made it.
absl::StatusOr<UniqueFd> TakeBypass(absl::string_view offer);

}  // namespace flotilla::rpc
