// Reservation: baselines that serve as systems did before paged KV memory.
//
// A baseline gives each request one contiguous run of KV slots when it starts and
// takes it back at the end. It is not a second scheduler of flotilla. It emulates
// first-come-first-served inflight batching over a reserving allocator (Orca's, as in
// Kwon et al. 2023, section 6.1), on the same cost model, workload and budgets. Two
// simplifications favour the baseline: it has no external fragmentation, and it knows a
// result at once.
//
// kMax can be run in two ways: by this emulation, and by the real scheduler on a machine
// whose blocks are as long as the reservation (MachineWithReservation). The tests
// compare the two.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "simulator/machine.h"
#include "simulator/run_record.h"
#include "simulator/simulator.h"

namespace flotilla::simulator {

enum class Reservation : std::uint8_t {
  kMax,         // the longest sequence there may be
  kPowerOfTwo,  // the prompt, and the output rounded up to a power of two
  kOracle,      // prompt and output exactly
};

// Slots that a request reserves; `max_tokens` is the longest sequence.
std::uint64_t ReservedSlots(Reservation reservation, const SimulatedRequest& request,
                            std::uint32_t max_tokens);

// Serves `workload` to the end with reservations; options as for Simulate (policy,
// prefix cache, lengths and round trip have no meaning here; several sequences of a
// request count as one). Requests that can never fit are refused.
absl::StatusOr<RunRecord> SimulateReservation(const Machine& machine, const Workload& workload,
                                              const SimulationOptions& options,
                                              Reservation reservation, std::uint32_t max_tokens);

// `machine` with blocks of `slots` slots, so that the real scheduler reserves them
// at once. Its pool is rounded down to whole blocks.
Machine MachineWithReservation(Machine machine, std::uint32_t slots);

}  // namespace flotilla::simulator
