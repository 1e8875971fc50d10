// From one row of logits to a token, and to log-probabilities.
//
// Pure functions: the outcome depends on the row, the parameters and the position
// of the token (sequence, output index, what comes before) alone, bit for bit on
// every instruction path. No state; no allocation in the greedy path but for the
// list of best tokens; any number of threads.
//
// How a token is drawn:
//   Stop tokens that may not come yet get -infinity, then the bias is added, then
//     the penalties are applied: repetition, frequency, presence (SamplingParams).
//   temperature 0 (or below kMinTemperature): arg-max of these logits, ties to
//     the lowest id.
//   else: min-p keeps every logit not below max + T ln(min_p), top-k every one not
//     below the k-th largest, so ties with it stay. Top-p then takes the kept
//     tokens by descending logit, ascending id, until their mass,
//     softmax(logits / T) over what was kept, reaches top_p; the token that reaches
//     it is in. Among what is left the largest
//     logit / T + Gumbel noise wins, which samples exactly their softmax; the
//     noise is a hash of (SequenceSeed(seed, sequence), output index, token id).
// Log-probabilities are natural logs of softmax(raw logits) over the whole
// vocabulary, whatever was changed or kept.
//
// A row with a NaN, with +infinity or with nothing above -infinity has no
// softmax: INTERNAL, which fails the request that it belongs to and no other.
// Single logits of -infinity are fine: they are never drawn nor listed. (A whole
// chunk of 1,024 NaNs beside sound ones counts as -infinity: softmax_stats.)
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/ids.h"
#include "common/types/plan.h"
#include "common/types/request.h"
#include "kernels/ops.h"

namespace flotilla {

// 1 / T times a logit must stay far from overflow.
inline constexpr float kMinTemperature = 1e-6f;

// The position of a token. Sequence and index are, with the seed, the key of its noise.
struct TokenPosition {
  SequenceIndex sequence;
  std::uint32_t output_index = 0;
  // What comes before it, all inside the vocabulary: the prompt, the output, and
  // drafts for the end of the output.
  absl::Span<const TokenId> prompt, output, drafts;
  // Stop tokens that may not come yet (StopRule::min_tokens). A model's file may name
  // some that its vocabulary does not have.
  absl::Span<const TokenId> banned;
};

// The position after `known`, whose last `outputs` tokens are output, and `drafts`. Views
// into what it was given.
TokenPosition PositionAfter(SequenceIndex sequence, absl::Span<const TokenId> known,
                            std::uint32_t outputs, absl::Span<const TokenId> drafts,
                            const StopRule& stop);

// What the random part of a token at this position is made from.
kernels::NoiseKey TokenNoise(const SamplingParams& sampling, const TokenPosition& position);

// What a token is drawn from where there are stop tokens that may not come, biases or
// penalties: `logits` are those of tokens first_token, first_token + 1, ...
bool ChangesLogits(const SamplingParams& sampling, const TokenPosition& position);
void ChangeLogits(const SamplingParams& sampling, const TokenPosition& position,
                  TokenId first_token, absl::Span<float> logits);

// False: shards of the row say enough each by itself to draw the token (row_partials.h).
bool NeedsFullRow(const SamplingParams& sampling);

// The log-sum-exp of a row by its statistics. INTERNAL: it has no softmax.
absl::StatusOr<float> RowLogSumExp(const kernels::SoftmaxStats& stats);

// Draws a token from `logits` [vocab] fp32. `top` holds the output_top best
// tokens, best first. The parameters are valid (GroupState checks them).
absl::StatusOr<SampledToken> SampleRow(const kernels::Ops& ops, absl::Span<const float> logits,
                                       const SamplingParams& sampling, const LogprobSpec& logprobs,
                                       const TokenPosition& position);

// The log-probability of `token`, which is known (a prompt token), and the `top`
// (0..LogprobSpec::kMaxTop, or kOff) best tokens. `token` is in the vocabulary.
absl::StatusOr<SampledToken> RowLogprobs(const kernels::Ops& ops, absl::Span<const float> logits,
                                         TokenId token, std::int32_t top);

// The `count` (1..BeamOptions::kMaxCandidates) most likely tokens with their
// log-probabilities, best first, ties by the lower id. Fewer where the vocabulary
// has no more above -infinity.
absl::StatusOr<std::vector<TopLogprob>> RowCandidates(const kernels::Ops& ops,
                                                      absl::Span<const float> logits,
                                                      std::uint32_t count);

}  // namespace flotilla
