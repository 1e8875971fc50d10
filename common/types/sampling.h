// How tokens are drawn, when a sequence ends, and which log-probabilities come back.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/types/constraint.h"
#include "common/types/dry_breakers.h"
#include "common/types/ids.h"
#include "common/types/thinking_limit.h"

namespace flotilla {

struct LogitBias {
  TokenId token = 0;
  float bias = 0;

  bool operator==(const LogitBias&) const = default;
};

// How a token is drawn from a row of logits. First the logits are changed, in this order: tokens
// that the constraint excludes, that are not allowed and the ends of bad words go, then come logit
// bias, repetition, frequency and presence penalty, and DRY. These depend only on the tokens before
// the row, so an answer that is resumed goes on as it would have without a break. Then filters keep
// some tokens, in this order: top-n-sigma, min-p, top-k, top-p, typical-p, XTC. One of the tokens
// that are left is drawn at the temperature.
struct SamplingParams {
  static constexpr float kMaxBias = 100;  // as low as -100
  static constexpr std::size_t kMaxBiases = 1024;
  static constexpr std::size_t kMaxAllowed = 4096;
  static constexpr std::size_t kMaxBadWords = 128;
  static constexpr std::size_t kMaxBadWordTokens = 512;  // of one

  // 0 means greedy: arg-max of the changed logits, ties to the lowest id.
  float temperature = 1.0f;
  // Keep the k best (ties with the k-th stay); 0 keeps all.
  std::int32_t top_k = 0;
  // Keep the smallest set of best tokens whose mass reaches top_p; 1 keeps all.
  float top_p = 1.0f;
  // Keep tokens whose logit is at most so many standard deviations below the largest one (Tang et
  // al. 2024, arXiv:2411.07641); 0 keeps all.
  float top_n_sigma = 0.0f;
  // Keep tokens that are at least this share as likely as the best one; 0 keeps all.
  float min_p = 0.0f;
  // Locally typical sampling (Meister et al. 2022, arXiv:2202.00666): of the tokens that the
  // filters before left, keep the smallest set whose mass reaches typical_p, beginning with the
  // tokens whose surprise, -log p, is nearest to its mean, the entropy (ties with the last
  // stay). The best token need not be among them. 1 keeps all.
  float typical_p = 1.0f;
  // XTC, "exclude top choices" (p-e-w 2024, github.com/oobabooga/text-generation-webui/pull/6335):
  // with this probability, which each output token draws anew, those tokens go that are at least
  // xtc_threshold likely among what the filters before left, but for the least likely of them (and
  // its ties). So one of two or more good tokens stays, and never the best. 0: never.
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  // For each token in the prompt or the output, a positive logit is divided by this and a
  // negative one is multiplied by it (Keskar et al. 2019, arXiv:1909.05858, 4.1). 1 changes
  // none.
  float repetition_penalty = 1.0f;
  // Subtracted as often as the token is in the output.
  float frequency_penalty = 0.0f;
  // Subtracted once if the token is in the output.
  float presence_penalty = 0.0f;
  // DRY, "don't repeat yourself" (p-e-w 2024,
  // github.com/oobabooga/text-generation-webui/pull/5677), as in llama.cpp's llama_sampler_dry.
  // Where the last n tokens of prompt and output are also in front of an earlier token, that
  // token's logit is lowered by dry_multiplier * dry_base ^ (n - dry_allowed_length), if n is at
  // least dry_allowed_length; of several places the longest counts. Tokens up to the last breaker
  // do not count for n, and a token that is a breaker is not lowered. dry_multiplier 0: nothing is.
  float dry_multiplier = 0.0f;
  float dry_base = 1.75f;
  std::int32_t dry_allowed_length = 2;
  // Only so many tokens are looked at, the last ones; -1: all.
  std::int32_t dry_penalty_last_n = -1;
  DryBreakers dry_breakers;
  // Added to the logits. The tokens are ascending and unique.
  std::vector<LogitBias> logit_bias;
  // No other token is drawn; ascending and unique. Empty: any token may be drawn.
  std::vector<TokenId> allowed_tokens;
  // No token is drawn that would complete one of these at the end of the output. None is empty.
  std::vector<std::vector<TokenId>> bad_words;
  // The answer follows this grammar: only tokens are drawn that can go on with it, and a stop token
  // only where it is complete. What is above acts on the tokens that are left, and if it leaves
  // none of them the grammar wins.
  Constraint constraint;
  // Its token is drawn whatever is above, unless the constraint excludes it.
  ThinkingLimit thinking;
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
