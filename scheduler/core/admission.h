// Admission: decides which requests this scheduler can serve at all, and names the reason
// when it cannot.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/types/executor.h"
#include "common/types/request.h"
#include "scheduler/core/core_state.h"

namespace flotilla::scheduler {

// The most positions with K and V that a sequence can come to have. The last token that is
// allowed is never fed back, so it has none.
std::uint32_t MaxPositions(std::uint32_t prompt_tokens, std::uint32_t max_tokens);

// The most sequences that may hold KV blocks at once. No request may have more. The number is below
// the row budget, so that decodes alone never fill a plan for which a prompt waits.
std::uint32_t MaxSequences(const CoreOptions& options, const ExecutorDescription& description);

// Whether the worker group of `description` could serve the request if it were alone.
//   INVALID_ARGUMENT: tokens are outside the vocabulary, parameters are out of range, the
//     request is longer than the context, the KV pool or the admission limit, or it has
//     more sequences or beams than can run.
//   UNIMPLEMENTED: adapters.
absl::Status CheckServable(const TokenizedRequest& request, const CoreOptions& options,
                           const ExecutorDescription& description);

// The size that a request can come to have.
struct Extent {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t max_tokens = 0;  // of each sequence
  std::uint32_t width = 1;       // sequences or beams
};

// The most KV blocks that a request alone can come to hold. The request fits the context.
std::uint64_t MostBlocks(const Extent& extent, const ExecutorDescription& description);

// Whether a request fits context and pool. INVALID_ARGUMENT names the limit that it
// exceeds.
absl::Status CheckFits(const Extent& extent, const ExecutorDescription& description);

// The longest prompt plus output that context and pool can hold.
std::uint32_t LongestServable(const ExecutorDescription& description);

// The most prompt tokens that may wait: CoreOptions::max_queued_tokens or, if that is 0, 65,536 or
// the longest servable prompt, whichever is more.
std::uint32_t MaxQueuedTokens(const CoreOptions& options, const ExecutorDescription& description);

// Whether the queue takes every prompt that context and pool can hold. FAILED_PRECONDITION: it does
// not, and the longest of them would always be refused. The error names both figures.
absl::Status CheckQueueTokens(const CoreOptions& options, const ExecutorDescription& description);

// Whether plans can be made for a description. INVALID_ARGUMENT: they cannot.
absl::Status CheckDescription(const ExecutorDescription& description);

}  // namespace flotilla::scheduler
