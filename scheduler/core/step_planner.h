// StepPlanner: decides what the next step does and writes it as a plan.
//
// One object makes at most one plan. Order of the budget: every decode that is
// due, then the prompts already begun, then new ones. Blocks are reserved for
// the upper bound of each length. The cost grows with the running branches and
// with what changes, never with context length.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/plan.h"
#include "scheduler/core/core_state.h"

namespace flotilla {

// Why there is no plan now, and what ends the wait.
enum class Hold : std::uint8_t {
  kNone,          // there is one
  kNotReady,      // no worker group: its Ready
  kPipelineFull,  // lag + 1 plans are unanswered: the next result
  kMemory,        // a branch lacks a block: all results, which free some or
                  // make it safe to preempt
  kResults,       // all that is runnable is in plans already: the next result
  kIdle,          // nothing to run: the next request
};

struct PlanOutcome {
  std::optional<StepPlan> plan;
  Hold hold = Hold::kNone;  // kNone exactly when there is a plan
  // Plan again at this time at the latest (a deadline), if anything is due.
  std::optional<std::int64_t> wake_ns;
};

class StepPlanner {
 public:
  // `state` outlives the planner.
  explicit StepPlanner(CoreState& state) : state_(state) {}

  // The next plan, recorded as in flight, or why there is none; then nothing
  // has changed but for preemptions, which only happen on the way to a plan.
  PlanOutcome Make();

 private:
  struct Chunk {
    Slot slot;
    std::uint32_t rows;
  };

  bool DueInThisStep(const Branch& branch) const;
  void Assess();
  void AssessDecodes();
  void AssessPrefills();
  // What the prefix cache has for the head of the queue, if it may start now.
  std::optional<KvLedger::Match> AdmitHead();
  bool PrefixIsBeingComputed(const Branch& head, const KvLedger::Match& match) const;
  bool WorthSending();
  bool SomeoneSatOut() const;

  void EmitSkips();
  void EmitDecodes();
  void EmitChunk(Slot slot, std::uint32_t rows);
  void EmitAdmissions();
  void Open(Slot slot, const KvLedger::Match& match);
  std::uint32_t SmallestCohort() const;

  CoreState& state_;
  StepPlan plan_;
  std::vector<PlannedRun> runs_;
  std::uint32_t prefill_rows_ = 0;

  // What Assess found, for the state as it is.
  std::vector<Slot> decodes_;      // due and with a block behind the position
  std::vector<Slot> finished_;     // due, but surely finished: no-ops
  std::vector<Slot> lacking_;      // could run but for a block
  std::vector<Chunk> chunks_;      // of prompts already begun
  bool due_later_ = false;         // a decode is due in another cohort's step
  std::uint64_t free_blocks_ = 0;  // after all of the above
  std::uint64_t owed_blocks_ = 0;  // for the rest of the prompts begun
  std::uint32_t budget_ = 0;       // rows left
  bool waits_for_prefix_ = false;  // the head of the queue
};

}  // namespace flotilla
