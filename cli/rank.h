// `flotilla rank`: one rank of a worker group. The agent of the group starts it by mpirun.
#pragma once

#include "cli/flags.h"

namespace flotilla::cli {

// Runs until the agent goes away, then ends the process.
[[noreturn]] void RunRank(const RoleFlags& flags);

}  // namespace flotilla::cli
