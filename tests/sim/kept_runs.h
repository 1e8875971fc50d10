// Runs of the simulation that several tests of a process need: each is made once.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "tests/sim/simulation.h"

namespace flotilla::testing {

// What a run left.
struct SimRun {
  absl::Status status;
  std::uint64_t steps = 0;  // that were asked for
  std::uint64_t trace_hash = 0, plan_hash = 0;
  SimCoverage coverage;
};

// Runs the seed for `steps` plans, or for `large_steps` if its prompts are long. The results of the
// seeds up to 200 are kept, and given to whoever asks for the same run again. Any number of threads
// may call it.
SimRun KeptRun(std::uint64_t seed, std::uint64_t steps, std::uint64_t large_steps);

}  // namespace flotilla::testing
