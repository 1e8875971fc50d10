// Admission: which requests this scheduler can serve at all, and by name why
// not. The only place where a request may be refused.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/types/executor.h"
#include "common/types/request.h"
#include "scheduler/core/core_state.h"

namespace flotilla {

// Most positions with K and V that a branch can come to have: the last token
// allowed is never fed back.
std::uint32_t MaxPositions(std::uint32_t prompt_tokens, std::uint32_t max_tokens);

// Whether `description`'s worker group could serve the request if it were
// alone.
//   INVALID_ARGUMENT: tokens outside the vocabulary, parameters out of range,
//     longer than the context, the KV pool or the admission limit.
//   UNIMPLEMENTED: several branches, beams, constraints, adapters.
absl::Status CheckServable(const TokenizedRequest& request, const CoreOptions& options,
                           const ExecutorDescription& description);

// Whether a branch of at most `max_positions` and `total_tokens` fits context
// and pool. INVALID_ARGUMENT, naming the limit.
absl::Status CheckFits(std::uint64_t total_tokens, std::uint32_t max_positions,
                       const ExecutorDescription& description);

// The longest prompt plus output that context and pool can hold.
std::uint32_t LongestServable(const ExecutorDescription& description);

// Whether a description can be planned for. INVALID_ARGUMENT.
absl::Status CheckDescription(const ExecutorDescription& description);

}  // namespace flotilla
