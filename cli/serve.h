// `flotilla serve`: every role in one process (LocalFleet), for clients.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace flotilla::cli {

// Serves until SIGINT or SIGTERM, then lets running requests finish for
// `drain_seconds`. A second signal ends the process at once. When the process can
// serve, it prints one line on standard output:
//   ready http=HOST:PORT grpc=HOST:PORT
// Errors: the model cannot be read or served, or the process cannot listen on an address.
// Called from main before any thread is started.
absl::Status RunServe(const RoleFlags& flags, const std::string& version);

}  // namespace flotilla::cli
