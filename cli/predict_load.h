// What the simulator predicts for the requests of a load test.
#pragma once

#include "absl/status/statusor.h"
#include "loadtest/core/load_plan.h"
#include "loadtest/core/load_recorder.h"
#include "loadtest/core/load_result.h"
#include "simulator/machine.h"

namespace flotilla::cli {

// Simulates `plan` on `machine`, with the scheduler's defaults there. The figures have the same
// definitions as those of a load test; there are no intervals. `tokens_per_word` is how many tokens
// a prompt has for each of its words. INVALID_ARGUMENT: the plan has conversations, whose later
// prompts only a server knows, or the machine cannot run it.
absl::StatusOr<loadtest::LoadResult> PredictLoad(const simulator::Machine& machine,
                                                 const loadtest::LoadPlan& plan,
                                                 double tokens_per_word,
                                                 const loadtest::ServiceLevel& level);

}  // namespace flotilla::cli
