// The directory of one incarnation of a worker group: what lies in it, besides what Open MPI puts
// there, and what becomes of one whose agent was killed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rt/unique_fd.h"

namespace flotilla {

// How its name begins.
inline constexpr char kDirectoryPrefix[] = "flotilla-group-";
// The agent's socket, to which ranks connect.
inline constexpr char kAgentSocket[] = "agent.sock";
// The file with what the launcher prints.
inline constexpr char kLauncherLog[] = "mpirun.log";
// The file with what a rank prints.
inline std::string RankLogName(int rank) { return "rank-" + std::to_string(rank) + ".log"; }

// A directory of this process alone. Whoever else may remove it holds its lock meanwhile
// (flock), which the kernel takes from a process that ends, however it does.
struct GroupDirectory {
  std::string path;
  UniqueFd lock;  // none, where the file system has no locks: then nobody removes it
};
// A new one in `temporary`, for its user alone. UNAVAILABLE: there can be none just now.
absl::StatusOr<GroupDirectory> MakeGroupDirectory(const std::string& temporary);

// Removes directories of this user in `temporary` whose agents are gone, also if they have
// just gone; never one of an agent that lives or is starting, whatever namespace it is in.
// Links are not followed. Looks at a bounded number of names.
void RemoveStaleDirectories(const std::string& temporary);

}  // namespace flotilla
