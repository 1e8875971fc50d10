// The directory of one life of a worker group: what lies in it, besides what Open MPI puts
// there, and what becomes of one whose agent was killed.
#pragma once

#include <string>

namespace flotilla {

// How its name begins.
inline constexpr char kDirectoryPrefix[] = "flotilla-group-";
// The agent's socket, to which ranks connect.
inline constexpr char kAgentSocket[] = "agent.sock";
// What the launcher prints.
inline constexpr char kLauncherLog[] = "mpirun.log";
// What a rank prints.
inline std::string RankLogName(int rank) { return "rank-" + std::to_string(rank) + ".log"; }

// Removes directories of this user in `temporary` that no agent listens in any more. Those
// younger than a minute stay: their agents may be about to.
void RemoveStaleDirectories(const std::string& temporary);

}  // namespace flotilla
