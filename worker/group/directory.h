// What lies in the directory of a worker group's life, besides what Open MPI puts there.
#pragma once

#include <string>

namespace flotilla {

// The agent's socket, to which ranks connect.
inline constexpr char kAgentSocket[] = "agent.sock";
// What the launcher prints.
inline constexpr char kLauncherLog[] = "mpirun.log";
// What a rank prints.
inline std::string RankLogName(int rank) { return "rank-" + std::to_string(rank) + ".log"; }

}  // namespace flotilla
