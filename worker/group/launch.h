// How the job of a worker group is started: mpirun's command line and environment.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla {

// Names and values.
using EnvironmentSettings = std::vector<std::pair<std::string, std::string>>;

// How to launch a job whose ranks may be on other hosts.
struct RemoteLaunch {
  // Where ranks find the agent, host:port, and what they show there.
  std::string agent, token;
  std::string network;              // ADDRESS/BITS: what MPI's messages take
  std::string hostfile;             // Open MPI's format; empty: as the launcher's environment says
  std::string hosts;                // instead of it: HOST or HOST:RANKS, comma-separated
  std::string remote_shell;         // starts a process on a host; empty: Open MPI's choice
  EnvironmentSettings environment;  // of the remote shell
};

struct LaunchOptions {
  std::string launcher;              // found by PATH
  std::vector<std::string> command;  // of a rank
  int ranks = 1;
  std::string directory;   // for all that the job leaves on disk here
  std::string heartbeats;  // passed on to the ranks; unless `remote`
  std::optional<RemoteLaunch> remote;
};

// What the environment of a rank on another host calls the token.
inline constexpr char kTokenVariable[] = "FLOTILLA_GROUP_TOKEN";

// Starts it in a process group of its own: a signal to the agent's group is not one to
// the ranks, which serve until the scheduler has drained. Open MPI keeps its session and
// its shared memory in the directory, uses this host alone (unless `remote`) and binds to
// no core. The pid of the launcher, a child that is to be waited for. NOT_FOUND: no such program;
// UNAVAILABLE: it cannot be started now.
absl::StatusOr<pid_t> LaunchJob(const LaunchOptions& options);

}  // namespace flotilla
