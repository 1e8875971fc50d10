// DRY: lowers the logits of tokens that would go on repeating what was said before (SamplingParams
// says how much).
//
// Pure. The cost is in proportion to the tokens that are looked at, whatever they are: the lengths
// of all repetitions come from one pass of the Z-algorithm (Gusfield 1997, 1.4), and the place of
// the last breaker from one pass with a bounded number of comparisons for each token. Any thread.
#pragma once

#include <vector>

#include "common/types/sampling.h"
#include "worker/compute/sampler.h"
#include "worker/compute/step_inputs.h"

namespace flotilla::worker {

// No penalty is larger, so that logits stay finite.
inline constexpr double kMaxDryPenalty = 1e30;

inline bool UsesDry(const SamplingParams& sampling) {
  return sampling.dry_multiplier > 0 && sampling.dry_penalty_last_n != 0;
}

// Appends what DRY subtracts at a position: an edit for each token that it lowers.
void AddDry(const SamplingParams& sampling, const TokenPosition& position,
            std::vector<LogitEdit>& edits);

}  // namespace flotilla::worker
