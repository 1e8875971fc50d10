// `flotilla rank`: one rank of a worker group, which `flotilla worker` starts by mpirun.
#pragma once

#include "cli/flags.h"

namespace flotilla::cli {

// Runs until the agent goes away; ends the process.
[[noreturn]] void RunRank(const RoleFlags& flags);

}  // namespace flotilla::cli
