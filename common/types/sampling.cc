#include "common/types/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

// NaN is in no range.
absl::Status CheckRange(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it must be from ", low, " to ", high));
}

absl::Status CheckBias(const std::vector<LogitBias>& biases, std::uint32_t vocab_size) {
  if (biases.size() > SamplingParams::kMaxBiases) {
    return absl::InvalidArgumentError(absl::StrCat("logit_bias has ", biases.size(),
                                                   " tokens; at most ", SamplingParams::kMaxBiases,
                                                   " are allowed"));
  }
  TokenId last = -1;
  for (const LogitBias& entry : biases) {
    if (entry.token <= last || static_cast<std::uint32_t>(entry.token) >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias: token ", entry.token,
                       " is outside the vocabulary, or the tokens do not ascend"));
    }
    last = entry.token;
    absl::Status s =
        CheckRange("logit_bias", entry.bias, -SamplingParams::kMaxBias, SamplingParams::kMaxBias);
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckTop(const char* name, std::int32_t top) {
  if (top >= LogprobSpec::kOff && top <= LogprobSpec::kMaxTop) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be ", LogprobSpec::kOff, " to ",
                                                 LogprobSpec::kMaxTop, ", is ", top));
}

}  // namespace

absl::Status CheckSampling(const SamplingParams& sampling, std::uint32_t vocab_size) {
  constexpr float kMost = SamplingParams::kMaxPenalty;
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) {
    return absl::InvalidArgumentError("temperature must be finite and not negative");
  }
  if (sampling.top_k < 0) return absl::InvalidArgumentError("top_k must not be negative");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return absl::InvalidArgumentError("top_p must be above 0 and at most 1");
  }
  absl::Status s = CheckRange("min_p", sampling.min_p, 0, 1);
  s.Update(CheckRange("repetition_penalty", sampling.repetition_penalty,
                      SamplingParams::kMinRepetitionPenalty,
                      SamplingParams::kMaxRepetitionPenalty));
  s.Update(CheckRange("frequency_penalty", sampling.frequency_penalty, -kMost, kMost));
  s.Update(CheckRange("presence_penalty", sampling.presence_penalty, -kMost, kMost));
  s.Update(CheckBias(sampling.logit_bias, vocab_size));
  return s;
}

absl::Status CheckStopRule(const StopRule& stop) {
  const std::vector<TokenId>& tokens = stop.stop_tokens;
  if (std::adjacent_find(tokens.begin(), tokens.end(), std::greater_equal<>()) != tokens.end()) {
    return absl::InvalidArgumentError("stop tokens must be sorted and unique");
  }
  return absl::OkStatus();
}

absl::Status CheckLogprobs(const LogprobSpec& logprobs) {
  absl::Status s = CheckTop("output log-probabilities", logprobs.output_top);
  s.Update(CheckTop("prompt log-probabilities", logprobs.prompt_top));
  return s;
}

}  // namespace flotilla
