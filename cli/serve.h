// `flotilla serve`: every role in one process. The same objects that a fleet
// spreads over machines, joined by the in-process implementations of the seams:
//
//   HTTP and gRPC frontends -> InferenceService -> Engine -> StepExecutor
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace flotilla {

// Serves until SIGINT or SIGTERM, then lets running requests finish for
// `drain_seconds`. A second signal ends the process at once. When it can serve
// it prints one line on standard output:
//   ready http=HOST:PORT grpc=HOST:PORT
// Errors: the model cannot be read or served, an address cannot be listened on.
// Called from main before any thread is started.
absl::Status RunServe(const RoleFlags& flags, const std::string& version);

}  // namespace flotilla
