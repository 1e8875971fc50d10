// `flotilla worker`: the agent of a worker group, which also runs or starts its ranks.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace flotilla::cli {

// Loads the model and executes a scheduler's plans until SIGINT or SIGTERM. When the worker
// is ready, it prints one line on standard output:
//   ready worker=HOST:PORT metrics=HOST:PORT
// Called from main before any thread is started.
absl::Status RunWorker(const RoleFlags& flags, const std::string& version);

}  // namespace flotilla::cli
