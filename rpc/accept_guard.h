// AcceptGuard: keeps connections of gRPC from taking the process's last file descriptors.
//
// gRPC 1.51, Debian 12's, bounds no connections, and a listener of it whose accept() fails for
// want of a descriptor is gone for good. So this library defines the function by which gRPC
// accepts, as the dynamic linker lets it, and goes on to gRPC's own. While descriptors are
// short a new connection takes the place of the one that has said nothing for longest; when
// they are all but gone it is closed at once, and gRPC told that nobody waits.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/descriptors.h"

namespace flotilla::rpc {

class AcceptGuard {
 public:
  // The descriptor of a connection that `accept` takes, or -1 and errno, which is never that
  // of a process without descriptors. Any thread.
  int Accept(absl::FunctionRef<int()> accept) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether gRPC's listeners ask this library: they do where its gRPC is a shared one.
  static bool InPlace();

 private:
  // A descriptor, and whose it was: the number may be somebody else's by now.
  struct Accepted {
    int fd;
    sockaddr_storage peer;
    socklen_t peer_bytes;
  };
  static bool IsSilent(const Accepted& one);
  // Closes a connection that waits; false: none waits, or none can be taken.
  bool DropOne(absl::FunctionRef<int()> accept);
  void Remember(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseOldestSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  SpareDescriptors spare_{1};
  std::deque<Accepted> accepted_ ABSL_GUARDED_BY(mu_);  // perhaps silent still; oldest first
};

}  // namespace flotilla::rpc
