// The machine that a flag of a simulation names.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "simulator/machine.h"

namespace flotilla::cli {

// A built-in machine, or the machine of a .json file. NOT_FOUND: there is no such machine or file.
// INVALID_ARGUMENT: the file holds no machine.
absl::StatusOr<simulator::Machine> LoadMachine(const std::string& name);

// The names of the built-in machines, for help texts.
std::string MachineNames();

}  // namespace flotilla::cli
