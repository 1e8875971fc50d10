// `flotilla exec HOST COMMAND...`: what a worker has mpirun call in place of ssh, so that
// `flotilla node` on that host starts the ranks. Its flags come by the environment, where
// they cannot be taken for the command's.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/flags.h"

namespace flotilla {

// The environment of `flotilla exec`, and of the mpirun that calls it, for a worker with these
// flags.
std::vector<std::pair<std::string, std::string>> ExecEnvironment(const RoleFlags& worker);

// The command line of mpirun's remote shell, this program's `exec`. FAILED_PRECONDITION: mpirun
// could not read it, since it takes spaces and colons for more than they are.
absl::StatusOr<std::string> ExecCommand();

// Adds flags and words; parsing fills `flags`, which outlives `app`.
void AddExecFlags(CLI::App& app, RoleFlags* flags);

// `words`: the host, and mpirun's command. Until the command ends: its exit code.
absl::StatusOr<int> RunExec(const RoleFlags& flags, const std::vector<std::string>& words);

}  // namespace flotilla
