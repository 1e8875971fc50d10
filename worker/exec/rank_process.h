// RankProcess: the main program of one rank of a worker group, started by mpirun.
//
// The process connects to the agent's socket, loads its part of the model, and then runs
// plans as they come. Nothing waits in MPI between steps, and the process uses no gRPC. It
// ends when the agent's socket closes, whatever it is doing.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rt/load_progress.h"
#include "worker/exec/step_runner.h"

namespace flotilla::worker {

struct RankProcessOptions {
  // The agent's directory, see directory.h.
  std::string group_directory;
  std::string heartbeats;  // HeartbeatPage::path of the agent
  std::string agent;       // host:port, if it may be on another host; then not the other two
};

// Loads what rank `rank` of `size` needs, and warms up. On INVALID_ARGUMENT, UNIMPLEMENTED,
// NOT_FOUND, FAILED_PRECONDITION or RESOURCE_EXHAUSTED the rank can never load, and the
// agent gives up. On any other error the agent tries again.
// While it loads it writes to `progress`, which is never null: a rank that does not get further is
// ended and started again.
using MakeRunner = std::function<absl::StatusOr<std::unique_ptr<StepRunner>>(
    int rank, int size, LoadProgress* progress)>;

// Runs the rank until the agent goes away, and ends the process by _exit; the exit code is 0
// in this case. Call it from main before anything else has started a thread.
[[noreturn]] void RunRankProcess(const RankProcessOptions& options, const MakeRunner& make);

}  // namespace flotilla::worker
