// Reads the state of processes from /proc.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace flotilla::worker {

// Returns the state letter of /proc/PID/stat: R, S, D, T (stopped), Z (has ended) ...; X if
// there is no such process.
char ProcessState(pid_t pid);

// Returns the live processes whose command line has these arguments in a row. Leaves out
// this process.
std::vector<pid_t> ProcessesWithArguments(const std::vector<std::string>& arguments);

// Whether the process of a pidfd has ended.
bool HasEnded(int pidfd);

}  // namespace flotilla::worker
