// Machines as JSON: a file that a user writes by hand or that a fit has written.
//
// The file holds one object. Its fields are those of Machine and of its cost model, whose
// `kind` is "linear" or "roofline". Hostile input is refused, and the error names it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "simulator/machine.h"

namespace flotilla::simulator {

// INVALID_ARGUMENT: not JSON, an unknown or missing field, a number out of range;
// the field is named.
absl::StatusOr<Machine> ParseMachine(absl::string_view json);

// Writes `machine` so that ParseMachine reads the same machine.
std::string MachineJson(const Machine& machine);

}  // namespace flotilla::simulator
