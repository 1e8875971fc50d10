// Admission: which requests this scheduler can serve at all, and by name why
// not. The only place where a request may be refused.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/types/executor.h"
#include "common/types/request.h"
#include "scheduler/core/core_state.h"

namespace flotilla {

// Most positions with K and V that a sequence can come to have: the last token
// allowed is never fed back.
std::uint32_t MaxPositions(std::uint32_t prompt_tokens, std::uint32_t max_tokens);

// Sequences that may hold KV blocks at once: no request has more. Below the row
// budget, so that decodes alone never fill a plan that a prompt waits for.
std::uint32_t MaxSequences(const CoreOptions& options, const ExecutorDescription& description);

// Whether `description`'s worker group could serve the request if it were
// alone.
//   INVALID_ARGUMENT: tokens outside the vocabulary, parameters out of range,
//     longer than the context, the KV pool or the admission limit, more sequences
//     or beams than can run.
//   UNIMPLEMENTED: constraints, adapters.
absl::Status CheckServable(const TokenizedRequest& request, const CoreOptions& options,
                           const ExecutorDescription& description);

// How much a request can come to need.
struct Extent {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t max_tokens = 0;  // of each sequence
  std::uint32_t width = 1;       // sequences or beams
};

// KV blocks that a request alone can come to hold. It fits the context.
std::uint64_t MostBlocks(const Extent& extent, const ExecutorDescription& description);

// Whether a request fits context and pool. INVALID_ARGUMENT, naming the limit.
absl::Status CheckFits(const Extent& extent, const ExecutorDescription& description);

// The longest prompt plus output that context and pool can hold.
std::uint32_t LongestServable(const ExecutorDescription& description);

// Whether a description can be planned for. INVALID_ARGUMENT.
absl::Status CheckDescription(const ExecutorDescription& description);

}  // namespace flotilla
