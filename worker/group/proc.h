// What /proc says about processes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace flotilla {

// The letter of /proc/PID/stat: R, S, D, T (stopped), Z (has ended) ...; X if there is no
// such process.
char ProcessState(pid_t pid);

// Live processes that have these arguments, one after the other; this one excepted.
std::vector<pid_t> ProcessesWithArguments(const std::vector<std::string>& arguments);

// Whether the process of a pidfd has ended.
bool HasEnded(int pidfd);

}  // namespace flotilla
