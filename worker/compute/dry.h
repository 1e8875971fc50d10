// DRY: lowers the logits of tokens that would go on repeating what was said before (SamplingParams
// says how much).
//
// Pure. The cost is in proportion to the n tokens that are looked at, and to the breakers if these
// are many, whatever both are: the lengths of all repetitions come from one pass of the Z-algorithm
// (Gusfield 1997, 1.4), and the place of the last breaker from one pass over at most n / 2 tokens
// (last_breaker.h). 131,072 tokens take 0.2 to 0.9 ms, and with the worst breakers 2 ms. Any
// thread.
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
