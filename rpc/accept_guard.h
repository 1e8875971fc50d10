// AcceptGuard: keeps connections of gRPC from taking the process's last file descriptors.
//
// gRPC 1.51, the version of Debian 12, does not bound its connections. If accept() of one of its
// listeners fails because no descriptor is left, that listener never accepts again. So this
// library interposes the function by which gRPC accepts, through the dynamic linker, and calls
// gRPC's own from it. Connections that have ended by then are closed before gRPC does anything for
// them. While descriptors are short, a new connection takes the place of the one that has been
// silent for longest; and so it does when very many are silent. When almost none is left, a new
// connection is closed at once, and gRPC is told that no connection waits.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/descriptors.h"

namespace flotilla::rpc {

// The most connections that may be silent, each of which costs gRPC 15 KiB. A client sends its
// first bytes at once, so who is silent while so many others come is none.
inline constexpr std::size_t kMostSilent = 4096;

class AcceptGuard {
 public:
  explicit AcceptGuard(std::size_t most_silent = kMostSilent) : most_silent_(most_silent) {}

  // The descriptor of a connection that `accept` takes, or -1 with errno, which never says that
  // the process has no descriptors. May be called on any thread.
  int Accept(absl::FunctionRef<int()> accept) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether gRPC's listeners call this library. They do if gRPC is a shared library.
  static bool InPlace();

 private:
  // A descriptor and the peer that it was accepted for. Another connection may have the same
  // number by now.
  struct Accepted {
    int fd;
    sockaddr_storage peer;
    socklen_t peer_bytes;
  };
  static bool IsSilent(const Accepted& one);
  // Whether the peer has closed the connection without a word.
  static bool HasLeft(int fd);
  // Closes a waiting connection. False: none waits, or none can be accepted.
  bool DropOne(absl::FunctionRef<int()> accept);
  void Remember(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseOldestSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::size_t most_silent_;
  absl::Mutex mu_;
  SpareDescriptors spare_{1};
  std::deque<Accepted> accepted_ ABSL_GUARDED_BY(mu_);  // may still be silent; oldest first
};

}  // namespace flotilla::rpc
