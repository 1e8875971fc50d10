// The directory of one incarnation of a worker group: the names of its files, besides those
// that Open MPI puts there, and the removal of a directory whose agent was killed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rt/unique_fd.h"

namespace flotilla::worker {

// The prefix of the directory's name.
inline constexpr char kDirectoryPrefix[] = "flotilla-group-";
// The agent's socket, to which ranks connect.
inline constexpr char kAgentSocket[] = "agent.sock";
// The file with what the launcher prints.
inline constexpr char kLauncherLog[] = "mpirun.log";
// The file with what a rank prints.
inline std::string RankLogName(int rank) { return "rank-" + std::to_string(rank) + ".log"; }

// A directory of this process alone. The process holds its lock (flock) while it lives, and
// only a process that gets the lock may remove the directory. The kernel releases the lock
// when a process ends, however it ends.
struct GroupDirectory {
  std::string path;
  UniqueFd lock;  // none, where the file system has no locks: then nobody removes it
};
// Makes a new directory in `temporary`, for this user alone. UNAVAILABLE: the system cannot
// make one now.
absl::StatusOr<GroupDirectory> MakeGroupDirectory(const std::string& temporary);

// Removes directories of this user in `temporary` whose agents are gone, even if they are
// gone only since a moment ago. Never removes the directory of an agent that lives or is
// starting, whatever namespace it is in. Follows no links. Looks at a bounded number of
// names.
void RemoveStaleDirectories(const std::string& temporary);

}  // namespace flotilla::worker
