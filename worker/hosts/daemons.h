// Daemons: the Open MPI daemons (orted) that this host runs for worker groups whose agent
// is on another host. A daemon process starts ranks, and ends with its Daemon object.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
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
  // Ends the daemon by SIGTERM, on which the daemon ends its ranks and removes its files.
  // Kills what is left after a second by SIGKILL.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  struct Update {
    std::string output;            // since the last call, 64 KiB at most
    std::optional<int> exit_code;  // it has ended, and nothing is left of its output
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
  bool closed_ = false;  // nobody prints any more
};

// All daemons of this host. Any thread may use it.
class Daemons {
 public:
  static constexpr std::size_t kMaxDaemons = 16;
  static constexpr std::size_t kMaxArguments = 256;
  static constexpr std::size_t kMaxArgumentBytes = 64 << 10;  // of all arguments

  // `program`: found by PATH.
  explicit Daemons(std::string program) : program_(std::move(program)) {}

  // Starts a daemon. Errors as for flotilla.v1.Host.Run. The Daemons object outlives the
  // Daemon that it returns.
  absl::StatusOr<std::unique_ptr<Daemon>> Start(const std::vector<std::string>& arguments)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::size_t running() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class Daemon;
  void Forget(pid_t pid) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string program_;
  mutable absl::Mutex mu_;
  std::set<pid_t> pids_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::worker
