// Starts a program that inherits nothing by accident. It gets a process group of its own,
// the signal settings of a fresh process, and no descriptor but its output.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla::worker {

struct SpawnOptions {
  std::vector<std::string> words;        // the program, found by PATH, and its arguments
  std::vector<std::string> environment;  // NAME=VALUE
  int output = -1;                       // standard output and error; stays the caller's
  bool drops_errors = false;             // standard error goes nowhere instead
};

// Returns the pid of a child, for which the caller must wait. NOT_FOUND: there is no such
// program; UNAVAILABLE: it cannot be started now.
absl::StatusOr<pid_t> Spawn(SpawnOptions options);

// This process's environment.
std::vector<std::string> OwnEnvironment();

}  // namespace flotilla::worker
