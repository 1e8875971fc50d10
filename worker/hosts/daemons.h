// Daemons: the Open MPI daemons (orted) that this host runs for worker groups whose agent
// is on another host. A daemon process starts ranks, and ends with its Daemon object.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/unique_fd.h"

namespace flotilla::worker {

class Daemons;

// One running daemon process. One thread uses it.
class Daemon {
 public:
  // Sends SIGTERM, on which the daemon ends its ranks and removes its files. When the daemon
  // has ended, or after one second, sends SIGKILL to what is left of its process group.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  struct Update {
    // What was printed since the last call, 64 KiB at most.
    std::string output;
    // Set when the daemon has ended and Wait has returned all its output.
    std::optional<int> exit_code;
  };
  // Returns an update as soon as there is one, or after `timeout_ms`.
  Update Wait(int timeout_ms);

 private:
  friend class Daemons;
  Daemon(Daemons* owner, pid_t pid, UniqueFd pidfd, UniqueFd output);
  std::string ReadOutput();

  Daemons* const owner_;
  const pid_t pid_;
  const UniqueFd pidfd_;
  const UniqueFd output_;
  bool closed_ = false;  // no process holds the other end of output_ any more
};

// All daemons of this host. Any thread may use it.
class Daemons {
 public:
  static constexpr std::size_t kMaxDaemons = 16;
  static constexpr std::size_t kMaxArguments = 256;
  static constexpr std::size_t kMaxArgumentBytes = 64 << 10;  // of all arguments

  // `program` is looked up in PATH.
  explicit Daemons(std::string program) : program_(std::move(program)) {}

  // Starts a daemon. Fails with the codes of flotilla.v1.Host.Run, or with UNAVAILABLE if the
  // daemon cannot be started now. The Daemons object outlives the Daemon that it returns.
  absl::StatusOr<std::unique_ptr<Daemon>> Start(const std::vector<std::string>& arguments)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class Daemon;
  void Reap(pid_t pid) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string program_;
  mutable absl::Mutex mu_;
  std::set<pid_t> pids_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::worker
