// Simulator: the real scheduler core and the real worker core in virtual time.
//
// One event loop with a virtual clock joins SchedulerCore, a VirtualGroup and the
// clients of a workload. Nothing reads a clock or depends on addresses: the same
// arguments give the same record. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/core/options.h"
#include "simulator/machine.h"
#include "simulator/run_record.h"
#include "simulator/virtual_group.h"
#include "simulator/workload.h"

namespace flotilla::simulator {

struct SimulationProgress {
  std::int64_t now_ns = 0;
  std::uint64_t ended = 0;  // requests, of
  std::uint64_t requests = 0;
};

struct SimulationOptions {
  scheduler::CoreOptions core;
  std::string policy = "fcfs";  // variants.h lists them
  // The time from scheduler to worker and back; half each way.
  std::int64_t round_trip_ns = 0;
  // True: a request's max_tokens is the length of its answer, so that the scheduler
  // knows it. False, as in practice: the model stops at any length below max_tokens.
  bool lengths_known = false;
  std::uint32_t max_tokens = 1024;
  // Checks the core's invariants after every event. This is slow, for tests.
  bool check_invariants = false;
  // Called after every so many events; false ends the run with CANCELLED. May be empty.
  std::uint32_t progress_events = 1024;
  std::function<bool(const SimulationProgress&)> progress;
};

// Serves `workload` on `machine` to the end.
//   INVALID_ARGUMENT: an unknown policy, or a machine that no plan can be made for.
//   CANCELLED: `progress` returned false.
//   INTERNAL and others: the two cores disagree or make no progress, which is a bug in one.
absl::StatusOr<RunRecord> Simulate(const Machine& machine, const Workload& workload,
                                   const SimulationOptions& options);

// The same, but with step times from another source than the machine's cost model, for
// example from steps that are really computed.
absl::StatusOr<RunRecord> SimulateWith(StepRunner& runner, const Machine& machine,
                                       const Workload& workload, const SimulationOptions& options);

}  // namespace flotilla::simulator
