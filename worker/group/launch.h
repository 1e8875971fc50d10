// Starts the job of a worker group: builds mpirun's command line and environment.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla::worker {

// Names and values.
using EnvironmentSettings = std::vector<std::pair<std::string, std::string>>;

// How to launch a job whose ranks may be on other hosts.
struct RemoteLaunch {
  // The agent's address, host:port, and the token that ranks show to the agent.
  std::string agent, token;
  std::string network;              // ADDRESS/BITS: the network that MPI's messages use
  std::string hostfile;             // Open MPI's format; empty: as the launcher's environment says
  std::string hosts;                // instead of it: HOST or HOST:RANKS, comma-separated
  std::string remote_shell;         // starts a process on a host; empty: Open MPI's choice
  EnvironmentSettings environment;  // of the remote shell
};

struct LaunchOptions {
  std::string launcher;              // found by PATH
  std::vector<std::string> command;  // of a rank
  int ranks = 1;
  std::string directory;   // for all files of the job on this host
  std::string heartbeats;  // passed on to the ranks, unless `remote` is set
  std::optional<RemoteLaunch> remote;
};

// The environment variable that gives the token to a rank on another host.
inline constexpr char kTokenVariable[] = "FLOTILLA_GROUP_TOKEN";

// Starts the job in a process group of its own. A signal to the agent's process group thus
// does not reach the ranks, which serve until the scheduler has drained. Open MPI keeps its
// session and its shared memory in the directory, uses this host alone (unless `remote`)
// and binds to no core. Returns the pid of the launcher, which is a child of this process;
// the caller waits for it. NOT_FOUND: there is no such program; UNAVAILABLE: it cannot be
// started now.
absl::StatusOr<pid_t> LaunchJob(const LaunchOptions& options);

}  // namespace flotilla::worker
