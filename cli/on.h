// `flotilla on HOST COMMAND...`: what a worker has mpirun call in place of ssh, so that
// `flotilla host` on that host starts the ranks. Its flags come by the environment, where
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

// The environment of `flotilla on`, and of the mpirun that calls it, for a worker with these
// flags.
std::vector<std::pair<std::string, std::string>> OnEnvironment(const RoleFlags& worker);

// The command line of mpirun's remote shell, this program's `on`. FAILED_PRECONDITION: mpirun
// could not read it, since it takes spaces and colons for more than they are.
absl::StatusOr<std::string> OnCommand();

// Adds flags and words; parsing fills `flags`, which outlives `app`.
void AddOnFlags(CLI::App& app, RoleFlags* flags);

// `words`: the host, and mpirun's command. Until the command ends: its exit code.
absl::StatusOr<int> RunOn(const RoleFlags& flags, const std::vector<std::string>& words);

}  // namespace flotilla
