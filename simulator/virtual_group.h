// VirtualGroup: a worker group in virtual time.
//
// The real worker/core applies a plan when a stage is free. A StepRunner decides how long
// a step takes and what it samples. Time comes in as a value. One thread; the runner
// outlives the group.
//
//   group.Receive(plan);
//   while (auto next = group.NextNs(now)) { ...; group.Advance(*next); }
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "simulator/cost_model.h"
#include "simulator/workload.h"
#include "worker/core/group_state.h"

namespace flotilla::simulator {

// Computes steps, or simulates them.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // How long the step takes. Called once for each step, in order.
  virtual StepCost Run(const worker::Batch& batch, const StepShape& shape) = 0;
};

// Takes the step times from a cost model.
class ModelledSteps final : public StepRunner {
 public:
  // `model` outlives it.
  explicit ModelledSteps(const CostModel& model) : model_(model) {}
  StepCost Run(const worker::Batch&, const StepShape& shape) override {
    return CostOf(model_, shape);
  }

 private:
  const CostModel& model_;
};

// Totals of the steps computed.
struct GroupTotals {
  std::uint64_t steps = 0;
  std::uint64_t memory_bound = 0;
  std::uint64_t compute_bound = 0;
  std::int64_t busy_ns = 0;
  StepShape rows;
};

class VirtualGroup {
 public:
  // `workload` tells when each answer ends; it and `runner` outlive the group.
  VirtualGroup(Epoch epoch, const ExecutorDescription& description, const Workload& workload,
               StepRunner& runner);

  const worker::GroupState& state() const { return state_; }
  const GroupTotals& totals() const { return totals_; }

  // Receives a plan. At most lag + 1 may be unanswered.
  void Receive(StepPlan plan) { plans_.push_back(std::move(plan)); }

  // When Advance has something to do, not before `now_ns`; none: never, until
  // another plan arrives.
  std::optional<std::int64_t> NextNs(std::int64_t now_ns) const;

  // Completes the oldest step if it is due, then starts the next if one can.
  // Errors are those of GroupState: the scheduler sent a bad plan.
  absl::StatusOr<std::optional<StepResult>> Advance(std::int64_t now_ns);

 private:
  struct Computing {
    Step step;
    std::int64_t end_ns;
    StepTimings timings;
    std::vector<worker::ItemOutput> outputs;
  };
  bool CanStart() const { return !plans_.empty() && computing_.size() < lag_; }
  absl::Status Start(std::int64_t now_ns);
  SampledToken Sample(const worker::BatchItem& item) const;
  std::vector<TopLogprob> Candidates(const worker::BatchItem& item) const;

  // The link to the tiers takes one copy after the other.
  struct Copying {
    std::uint64_t id;
    std::int64_t end_ns;
  };
  void StartCopies(const worker::Batch& batch, std::int64_t now_ns);

  const std::size_t lag_;
  const std::vector<KvGroup> groups_;
  const std::vector<KvTier> tiers_;
  const Workload& workload_;
  StepRunner& runner_;
  worker::GroupState state_;
  std::deque<StepPlan> plans_;
  std::deque<Computing> computing_;
  std::deque<Copying> copies_;
  std::int64_t link_free_ns_ = 0;
  std::int64_t stage_free_ns_ = 0;  // the first stage takes its next step
  GroupTotals totals_;
};

}  // namespace flotilla::simulator
