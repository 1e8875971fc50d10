// Checks the invariants of the architecture page that the scheduler can check by itself.
// tests/sim checks those that need the worker side or the event stream (5, 8, 9).
#pragma once

#include "absl/status/status.h"
#include "scheduler/core/core_state.h"

namespace flotilla::scheduler {

// Returns OK, or INTERNAL with the number of the first invariant that does not hold. It
// reads the whole state, so only tests call it.
absl::Status CheckInvariants(const CoreState& state);

}  // namespace flotilla::scheduler
