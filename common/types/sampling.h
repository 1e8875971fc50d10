// How tokens are drawn, when a sequence ends, and which log-probabilities come back.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/types/ids.h"

namespace flotilla {

struct LogitBias {
  TokenId token = 0;
  float bias = 0;

  bool operator==(const LogitBias&) const = default;
};

// How a token is drawn from a row of logits. First the logits are changed, in this order:
// logit bias, repetition, frequency and presence penalty. These depend only on the tokens
// before the row, so an answer that is resumed goes on as it would have without a break.
// Then filters keep some tokens, in this order: min-p, top-k, top-p, typical-p. One of the tokens
// that are left is drawn at the temperature.
struct SamplingParams {
  static constexpr float kMaxBias = 100;  // as low as -100
  static constexpr std::size_t kMaxBiases = 1024;

  // 0 means greedy: arg-max of the changed logits, ties to the lowest id.
  float temperature = 1.0f;
  // Keep the k best (ties with the k-th stay); 0 keeps all.
  std::int32_t top_k = 0;
  // Keep the smallest set of best tokens whose mass reaches top_p; 1 keeps all.
  float top_p = 1.0f;
  // Keep tokens that are at least this share as likely as the best one; 0 keeps all.
  float min_p = 0.0f;
  // Locally typical sampling (Meister et al. 2022, arXiv:2202.00666): of the tokens that the
  // filters before left, keep the smallest set whose mass reaches typical_p, beginning with the
  // tokens whose surprise, -log p, is nearest to its mean, the entropy (ties with the last
  // stay). The best token need not be among them. 1 keeps all.
  float typical_p = 1.0f;
  // For each token in the prompt or the output, a positive logit is divided by this and a
  // negative one is multiplied by it (Keskar et al. 2019, arXiv:1909.05858, 4.1). 1 changes
  // none.
  float repetition_penalty = 1.0f;
  // Subtracted as often as the token is in the output.
  float frequency_penalty = 0.0f;
  // Subtracted once if the token is in the output.
  float presence_penalty = 0.0f;
  // Added to the logits. The tokens are ascending and unique.
  std::vector<LogitBias> logit_bias;
  // The noise of a token is a hash of (SequenceSeed, output index, token id).
  std::uint64_t seed = 0;

  bool operator==(const SamplingParams&) const = default;
};

// The seed of one sequence. For sequence 0 it is the request's seed; for any other it is
// output number `sequence` of SplitMix64 (Steele, Lea, Flood 2014) seeded with that. A
// request with one sequence and this seed gives the same tokens.
inline std::uint64_t SequenceSeed(std::uint64_t seed, SequenceIndex sequence) {
  if (sequence.value() == 0) return seed;
  std::uint64_t x = seed + sequence.value() * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// When a sequence ends at token level. worker/core decides this on every rank.
struct StopRule {
  // A token of this list ends the sequence with FinishReason::kStop; the token itself is
  // emitted as the last token event. The list is sorted and unique. It does not have the
  // model's own end tokens if the client asked to ignore them.
  std::vector<TokenId> stop_tokens;
  // The most output tokens, those of an output prefix included. 0: only the prompt is
  // computed (for log-probabilities of the prompt).
  std::uint32_t max_tokens = 16;
  // No stop token is drawn among the first `min_tokens` output tokens.
  std::uint32_t min_tokens = 0;

  bool operator==(const StopRule&) const = default;
};

// Which log-probabilities are returned. They are natural logs, from the raw logits.
// The chosen token's own is always part of a token event.
struct LogprobSpec {
  static constexpr std::int32_t kOff = -1;
  static constexpr std::int32_t kMaxTop = 20;
  // kOff, or number of best alternatives per output token, 0..kMaxTop.
  std::int32_t output_top = kOff;
  // kOff, or number of best alternatives per prompt token, 0..kMaxTop.
  std::int32_t prompt_top = kOff;

  bool operator==(const LogprobSpec&) const = default;
};

// INVALID_ARGUMENT names the value that is outside its range or not a number.
absl::Status CheckSampling(const SamplingParams& sampling, std::uint32_t vocab_size);
absl::Status CheckStopRule(const StopRule& stop);
absl::Status CheckLogprobs(const LogprobSpec& logprobs);

}  // namespace flotilla
