// `flotilla scheduler`: the engine loop between routers and a worker group. The agent of the
// group is `flotilla worker`, or with --model this process.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace flotilla::cli {

// Waits for the agent, then serves until SIGINT or SIGTERM, then lets running requests
// finish for `drain_seconds`. A second signal ends the process at once. When the
// scheduler serves, it prints one line on standard output:
//   ready scheduler=HOST:PORT metrics=HOST:PORT
// Called from main before any thread is started.
absl::Status RunScheduler(const RoleFlags& flags, const std::string& version);

}  // namespace flotilla::cli
