// `flotilla router`: the HTTP and gRPC frontends of schedulers in other processes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace flotilla::cli {

// Waits for the scheduler, then serves until SIGINT or SIGTERM, then lets running
// requests finish for `drain_seconds`. A second signal ends the process at once. When
// the router serves, it prints one line on standard output:
//   ready http=HOST:PORT grpc=HOST:PORT
// Called from main before any thread is started.
absl::Status RunRouter(const RoleFlags& flags, const std::string& version);

}  // namespace flotilla::cli
