// What a whole row of logits says, without shards: the twins of what partial results conclude.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/compute/sampler.h"

namespace flotilla::worker {

// The `count` most likely tokens with their log-probabilities, best first; of equal ones the lower
// id comes first. Fewer if fewer are above -infinity. The first `tokens` logits belong to tokens.
inline absl::StatusOr<std::vector<TopLogprob>> RowCandidates(const kernels::Ops& ops,
                                                             absl::Span<const float> logits,
                                                             std::uint32_t tokens,
                                                             std::int64_t count) {
  const int size = static_cast<int>(logits.size());
  const auto lse = RowLogSumExp(ops.softmax_stats(logits.data(), size));
  if (!lse.ok()) return lse.status();
  std::vector<kernels::TokenScore> best(std::clamp<std::int64_t>(count, 0, tokens));
  if (!best.empty()) {
    ops.top_n(logits.data(), static_cast<int>(tokens), static_cast<int>(best.size()), best.data());
  }
  std::vector<TopLogprob> candidates;
  for (const kernels::TokenScore& entry : best) {
    if (!(entry.score > -std::numeric_limits<float>::infinity())) break;
    candidates.push_back({entry.token, entry.score - *lse});
  }
  return candidates;
}

// The log-probability of `token`, which is known, and the `top` best tokens.
inline absl::StatusOr<SampledToken> RowLogprobs(const kernels::Ops& ops,
                                                absl::Span<const float> logits,
                                                std::uint32_t tokens, TokenId token,
                                                std::int32_t top) {
  auto best = RowCandidates(ops, logits, tokens, top);
  if (!best.ok()) return best.status();
  const auto stats = ops.softmax_stats(logits.data(), static_cast<int>(logits.size()));
  return SampledToken{
      .token = token, .logprob = logits[token] - *RowLogSumExp(stats), .top = *std::move(best)};
}

}  // namespace flotilla::worker
