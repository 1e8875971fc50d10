// MeasureSteps: measures how long the steps of a real model take on this computer.
//
// This is the simulation with real hardware. Event loop, scheduler and worker core are the same,
// but a Rank computes each batch. The virtual clock advances by the time that this takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "simulator/machine.h"
#include "simulator/simulator.h"
#include "simulator/step_fit.h"
#include "worker/exec/rank.h"

namespace flotilla::cli {

class StepMeter {
 public:
  // Loads the model. Errors as Rank::Create; FAILED_PRECONDITION: its vocabulary is
  // smaller than the simulated one. `clock` outlives the meter.
  static absl::StatusOr<StepMeter> Create(const std::string& model_path, int threads,
                                          const Clock* clock);

  // The machine as the rank describes it; its cost model is not set.
  const simulator::Machine& machine() const { return machine_; }

  // Serves `workload` until it ends or `seconds` have passed, and appends the steps to
  // `steps`. CANCELLED: the run did not finish, so it has no record.
  absl::StatusOr<simulator::RunRecord> Run(const simulator::Workload& workload,
                                           const simulator::SimulationOptions& options,
                                           double seconds,
                                           std::vector<simulator::MeasuredStep>* steps);

 private:
  StepMeter(std::unique_ptr<worker::Rank> rank, const Clock* clock, simulator::Machine machine);

  std::unique_ptr<worker::Rank> rank_;
  const Clock* clock_;
  simulator::Machine machine_;
};

// The loads under which steps are measured for a fit. They have one to 64 requests at
// once, short and long ones, so that all terms of the cost model vary.
std::vector<simulator::Workload> MeasuringWorkloads();

}  // namespace flotilla::cli
