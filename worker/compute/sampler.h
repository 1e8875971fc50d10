// Turns one row of logits into a token, and into log-probabilities.
//
// All functions are pure: the outcome depends on the row, the parameters and the position
// of the token (sequence, output index, preceding tokens) alone, bit for bit on every
// instruction path. They keep no state. The greedy path allocates nothing but the list of
// best tokens. Any number of threads may call them.
//
// How a token is drawn:
//   First, tokens that the mask of a constraint excludes, tokens that are not allowed, those that
//   would complete a bad word and stop tokens that
//     may not come yet get -infinity. Then the bias is added. Then the penalties are applied:
//     repetition, frequency, presence, and DRY (SamplingParams). Where the thoughts are over by
//     their limit, none of this counts, and all tokens but the forced one get -infinity.
//   With temperature 0 (or below kMinTemperature) the arg-max of these logits wins; of
//     equal logits the lowest id wins.
//   Otherwise filters keep some tokens. Top-n-sigma keeps every logit not below max - n * sigma,
//     the standard deviation of all logits above -infinity. Min-p keeps every logit not below
//     max + T ln(min_p), and top-k every logit not below the k-th largest, so ties with it stay.
//     Top-p then takes the kept tokens by descending logit, ascending id, until their mass,
//     softmax(logits / T) over the kept tokens, reaches top_p; the token that reaches it is
//     included. Typical-p then takes these tokens by ascending |-log p - H|, where H is the entropy
//     of their softmax p, until their mass reaches typical_p; ties with the last stay. It comes
//     behind these, as in transformers' `generate`. XTC comes last, as in llama.cpp: where the draw
//     of the position is below xtc_probability, all logits go that are above the least of those
//     whose softmax over the tokens that are left is at least xtc_threshold.
//   Among the tokens that are left then the largest logit / T + Gumbel noise wins, which samples
//     exactly their softmax. The noise is a hash of (SequenceSeed(seed, sequence), output index,
//     token id), and XTC's draw one of the first two.
// Log-probabilities are natural logs of softmax(raw logits) over the whole
// row, whatever was changed or kept. The last logits of a row may belong to no token: they count
// there, as in Hugging Face's transformers, and are left out of all that is above.
//
// A row with a NaN, with +infinity or with nothing above -infinity has no softmax. The
// functions then return INTERNAL, which fails the request of the row and no other request.
// Single logits of -infinity are valid: such tokens are never drawn or listed. (A whole
// chunk of 1,024 NaNs beside valid chunks counts as -infinity: softmax_stats.)
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/ids.h"
#include "common/types/plan.h"
#include "common/types/request.h"
#include "kernels/ops.h"
#include "worker/compute/step_inputs.h"

namespace flotilla::worker {

// 1 / T times a logit must stay far from overflow.
inline constexpr float kMinTemperature = 1e-6f;

// The position of a token. The sequence, the output index and the seed are the key of the
// token's noise.
struct TokenPosition {
  SequenceIndex sequence;
  std::uint32_t output_index = 0;
  // The tokens before it, all inside the vocabulary: the prompt, the output, and drafts for
  // the end of the output.
  absl::Span<const TokenId> prompt, output, drafts;
  // Stop tokens that may not come yet (StopRule::min_tokens). A model's file may name
  // some that its vocabulary does not have.
  absl::Span<const TokenId> banned;
};

// Returns the position after `known` and `drafts`. The last `outputs` tokens of `known` are
// output. The result holds views into the arguments.
TokenPosition PositionAfter(SequenceIndex sequence, absl::Span<const TokenId> known,
                            std::uint32_t outputs, absl::Span<const TokenId> drafts,
                            const StopRule& stop);

// Everything that decides which token is drawn from a row, but the row. It keeps no view.
struct TokenDraw {
  float temperature = 1;
  std::int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float typical_p = 1;
  float top_n_sigma = 0;
  float xtc_threshold = 1;  // above 0.5: XTC excludes nothing here
  kernels::NoiseKey noise;
  std::optional<TokenId> forced;  // it comes, whatever follows here, if a mask allows it
  std::vector<TokenId> allowed;   // ascending; empty: all tokens
  // Ends of bad words and stop tokens that may not come yet, biases, penalties and DRY.
  std::vector<LogitEdit> edits;

  bool greedy() const { return temperature < kMinTemperature; }
};

// Whether penalties or DRY are used, so that MakeDraw looks at all tokens before a position.
bool Penalises(const SamplingParams& sampling);

// The draw at a position.
TokenDraw MakeDraw(const SamplingParams& sampling, const TokenPosition& position);

// Makes the edits of tokens first_token, first_token + 1, ..., whose logits these are.
void EditLogits(absl::Span<const LogitEdit> edits, TokenId first_token, absl::Span<float> logits);

// Whether drawing the token needs the full row. False: the partials of the row's shards are
// enough (row_partials.h).
bool NeedsFullRow(const SamplingParams& sampling);

// The log-sum-exp of a row, from its statistics. INTERNAL: the row has no softmax.
absl::StatusOr<float> RowLogSumExp(const kernels::SoftmaxStats& stats);

// Draws a token from `logits` [vocab] fp32, of which the first `tokens` (at least one) belong to
// tokens. `mask` is that of a constraint (RowMask::allowed); empty: there is none. If the edits and
// the allowed tokens leave no token of a mask, they do not count. The result lists the `top`
// (0..LogprobSpec::kMaxTop, or kOff) best tokens, best first. The parameters are valid (GroupState
// checks them).
absl::StatusOr<SampledToken> SampleRow(const kernels::Ops& ops, absl::Span<const float> logits,
                                       std::uint32_t tokens, const TokenDraw& draw,
                                       std::int32_t top, absl::Span<const std::uint32_t> mask = {});

// The `count` best of the tokens that a mask allows, best first, or as many as there are, at least
// one. The arguments are those of SampleRow. INTERNAL: the row has no softmax, or none of them has
// a logit above -infinity.
absl::StatusOr<std::vector<TopLogprob>> BestTokens(const kernels::Ops& ops,
                                                   absl::Span<const float> logits,
                                                   std::uint32_t tokens, std::int32_t count,
                                                   absl::Span<const std::uint32_t> mask);

}  // namespace flotilla::worker
