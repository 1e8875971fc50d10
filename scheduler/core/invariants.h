// The invariants of the architecture page that the scheduler's side can prove
// about itself. Those that need the other side or the event stream (5, 8, 9)
// are proved by tests/sim.
#pragma once

#include "absl/status/status.h"
#include "scheduler/core/core_state.h"

namespace flotilla {

// OK, or INTERNAL with the number of the first invariant that does not hold.
// Reads everything: called by tests only.
absl::Status CheckInvariants(const CoreState& state);

}  // namespace flotilla
