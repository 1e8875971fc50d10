// Starts a program that outlives nobody by accident: in a process group of its own, with
// signals as a fresh process has them and no descriptor but its output.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla {

struct SpawnOptions {
  std::vector<std::string> words;        // the program, found by PATH, and its arguments
  std::vector<std::string> environment;  // NAME=VALUE
  int output = -1;                       // standard output and error; stays the caller's
};

// The pid of a child that is to be waited for. NOT_FOUND: no such program; UNAVAILABLE: it
// cannot be started now.
absl::StatusOr<pid_t> Spawn(SpawnOptions options);

// This process's environment.
std::vector<std::string> OwnEnvironment();

}  // namespace flotilla
