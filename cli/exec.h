// `flotilla exec HOST COMMAND...`: the program that a worker's mpirun calls in place of ssh,
// so that `flotilla node` on that host starts the ranks. Its flags come from the environment,
// where nothing can mistake them for flags of the command.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/flags.h"

namespace CLI {
class App;
}  // namespace CLI

namespace flotilla::cli {

// The environment of `flotilla exec`, and of the mpirun that calls it, for a worker with these
// flags.
std::vector<std::pair<std::string, std::string>> ExecEnvironment(const RoleFlags& worker);

// The command line of mpirun's remote shell: this program with `exec`. FAILED_PRECONDITION: the
// program's path has a space or a colon, which mpirun would take for separators.
absl::StatusOr<std::string> ExecCommand();

// Adds the flags. Parsing fills `flags`, which outlives `app`, and leaves the command's words in
// app.remaining().
void AddExecFlags(CLI::App& app, RoleFlags* flags);

// Waits until the command ends and returns its exit code. `words`: the host and mpirun's command.
absl::StatusOr<int> RunExec(const RoleFlags& flags, const std::vector<std::string>& words);

}  // namespace flotilla::cli
