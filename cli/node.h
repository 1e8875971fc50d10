// `flotilla node`: lends this host to worker groups whose agent is on another host.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace flotilla::cli {

// Serves until SIGINT or SIGTERM, which end the ranks on this host.
absl::Status RunNode(const RoleFlags& flags, const std::string& version);

}  // namespace flotilla::cli
