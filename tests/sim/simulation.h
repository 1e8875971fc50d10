// Simulation: a scheduler core, a worker group and their clients under one seed.
//
// Every choice (arrivals, lengths, cancels, deadlines, how late plans and
// results are, when a group dies and with what pool it returns) comes from the
// seed. After each event all invariants are checked; the first that fails ends
// the run with a message. One thread; nothing depends on time or addresses.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/core/scheduler_core.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_random.h"
#include "tests/sim/sim_worker.h"

namespace flotilla {

// How often each interesting thing happened; the test asserts that all did.
struct SimCoverage {
  CoreCounters core;
  std::uint64_t steps = 0;
  std::array<std::uint64_t, 5> cancelled_in{};  // by BranchState (pending: as waiting)
  std::array<std::uint64_t, 5> lost_in{};       // open branches by BranchState
  std::uint64_t cancelled_after_finish = 0;     // finished, the result on its way
  std::uint64_t lost_with_results_in_flight = 0;
  std::uint64_t lost_idle = 0;
  std::uint64_t stale_results = 0;
  std::uint64_t refused_full = 0;
  std::uint64_t refused_wait = 0;  // of them for their predicted wait
  std::uint64_t refused_too_large = 0;
  std::uint64_t refused_draining = 0;
  std::uint64_t replayed = 0;     // arrived with an output prefix
  std::uint64_t prompt_only = 0;  // max_tokens 0
  std::uint64_t parallel = 0;     // several branches
  std::uint64_t undisturbed = 0;  // served after as many preemptions as one may have
  std::uint64_t beams = 0;        // beam searches
  std::uint64_t beams_served = 0;
  std::uint64_t too_large_for_new_group = 0;
  std::array<std::uint64_t, 6> holds{};     // by Hold
  std::array<std::uint64_t, 4> lags{};      // runs by lag
  std::array<std::uint64_t, 4> policies{};  // runs by policy

  void Add(const SimCoverage& other);
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed);

  // Runs until `steps` plans were made, then lets all work finish and checks
  // that nothing is left. The error names the invariant and the tick.
  absl::Status Run(std::uint64_t steps);

  // Of all plans and events in their order.
  std::uint64_t trace_hash() const { return trace_hash_; }
  const SimCoverage& coverage() const { return coverage_; }

 private:
  // One thing that happens.
  absl::Status Tick(bool arrivals);
  void Arrive();
  TokenizedRequest RandomRequest();
  void CancelSome();
  absl::Status MakePlan();
  absl::Status CheckHold(const PlanOutcome& outcome) const;
  absl::Status CheckProgress();
  absl::Status DeliverResult();
  void KillGroup();
  absl::Status ReviveGroup();
  ExecutorDescription RandomGroup();
  absl::Status WindDown();

  absl::Status AfterEvent();
  absl::Status TakeEvents();
  absl::Status CompareMarks(const SimResult& result) const;
  absl::Status CompareWithWorker() const;
  const SimClient& Find(const RequestId& id) const { return clients_.at(id.counter); }
  void Trace(std::uint64_t word) { trace_hash_ = SimMix(trace_hash_ ^ word); }
  void TracePlan(const StepPlan& plan);

  SimRandom random_;
  // What this seed's traffic is like.
  CoreOptions options_;
  ExecutorDescription group_;
  std::uint32_t arrive_one_in_, cancel_one_in_, kill_one_in_;
  std::uint32_t plan_weight_, apply_weight_, complete_weight_, deliver_weight_;
  bool tiers_;
  std::uint32_t wide_one_in_;
  NgramOptions ngrams_;
  std::uint32_t prompt_bits_, output_bits_;
  bool long_outputs_;
  std::vector<std::vector<TokenId>> openings_;  // prompts often begin with one

  std::optional<SchedulerCore> core_;
  std::int64_t now_ns_ = 0;
  std::uint64_t ticks_ = 0;

  Epoch epoch_{0};
  std::unique_ptr<SimWorker> worker_;  // null: dead
  bool loss_told_ = true;              // the core knows that it is dead
  std::deque<StepPlan> plans_;         // sent, not applied
  std::deque<SimResult> results_;      // on their way back
  std::optional<StepResult> stale_;    // of a lost epoch, comes too late

  std::map<std::uint64_t, SimClient> clients_;
  std::vector<std::uint64_t> live_;  // not ended, in order of arrival
  std::uint64_t next_id_ = 1;

  // The first branch in the order of the policy must move on.
  std::optional<RequestId> front_;
  std::uint64_t front_progress_ = 0;
  std::uint32_t front_stalled_ = 0;

  SimCoverage coverage_;
  std::uint64_t trace_hash_ = 0;
};

}  // namespace flotilla
