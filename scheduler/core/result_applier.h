// ResultApplier: applies a step's result to the sequences and emits their events.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/types/plan.h"
#include "scheduler/core/core_state.h"

namespace flotilla::scheduler {

class ResultApplier {
 public:
  // `state` outlives the applier.
  explicit ResultApplier(CoreState& state) : state_(state) {}

  // Applies the result of the oldest unanswered plan: lengths, tokens, ends and events.
  // Entries of sequences that ended after the plan was sent are discarded, and so are
  // results of an older epoch.
  //   INTERNAL: the result does not answer the plan. Part of it may have been
  //     applied; the epoch cannot be continued.
  absl::Status Apply(const StepResult& result);

 private:
  absl::Status ApplyPlan(const PlanInFlight& plan, const StepResult& result);
  absl::Status ApplyRun(const PlannedRun& run, const SequenceResult& result, TableIndex index);
  absl::Status CheckRun(const PlannedRun& run, const SequenceResult& result,
                        const Sequence& sequence) const;
  absl::Status ApplyEndedRun(const PlannedRun& run, const SequenceResult& result);
  absl::Status EmitPromptLogprobs(const PlannedRun& run, const SequenceResult& result,
                                  Request& request);
  void CountDraftTokens(const PlannedRun& run, const SequenceResult& result, Sequence& sequence);
  void EmitTokens(const SequenceResult& result, Sequence& sequence);

  CoreState& state_;
};

}  // namespace flotilla::scheduler
