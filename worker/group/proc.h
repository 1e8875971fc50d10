// Reads the state of processes from /proc.
#pragma once

#include <sys/types.h>

#include <optional>
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

// How the process of a pidfd ended, as waitpid reports it. Works for processes that are no
// children, once their parents have reaped them. None: not yet, or the kernel cannot say (before
// Linux 6.15).
std::optional<int> WaitStatus(int pidfd);

}  // namespace flotilla::worker
