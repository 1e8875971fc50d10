// How the job of a worker group is started: mpirun's command line and environment.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla {

struct LaunchOptions {
  std::string launcher;              // found by PATH
  std::vector<std::string> command;  // of a rank
  int ranks = 1;
  std::string directory;   // for all that the job leaves on disk
  std::string heartbeats;  // passed on to the ranks
};

// Starts it in a process group of its own: a signal to the agent's group is not one to
// the ranks, which serve until the scheduler has drained. Open MPI keeps its session and
// its shared memory in the directory, uses this host alone and binds to no core. The pid
// of the launcher, a child that is to be waited for. NOT_FOUND: no such program;
// UNAVAILABLE: it cannot be started now.
absl::StatusOr<pid_t> LaunchJob(const LaunchOptions& options);

}  // namespace flotilla
