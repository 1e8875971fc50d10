#include "common/types/sampling.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/types/parameters.h"

namespace flotilla {
namespace {

// Checks a value against the constants of the row; a model's own limits are the router's matter.
template <class T>
absl::Status CheckRange(const Parameter& row, T value) {
  const T high = row.range.limit == Limit::kNone ? static_cast<T>(row.range.high)
                                                 : std::numeric_limits<T>::max();
  const std::string error = RangeError(row, value, static_cast<T>(row.range.low), high);
  return error.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error);
}

// Checks the number of entries of a list.
absl::Status CheckCount(const char* name, std::size_t count, const char* what, std::size_t most) {
  if (count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " has ", count, " ", what, "; at most ", most, " are allowed"));
}

// Checks a token of a list in which tokens ascend, behind `last`.
absl::Status CheckAscends(const char* name, TokenId last, TokenId token, std::uint32_t vocab_size) {
  if (token > last && static_cast<std::uint32_t>(token) < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": token ", token,
                                                 " is outside the vocabulary of ", vocab_size,
                                                 ", or the tokens do not ascend"));
}

absl::Status CheckBias(const std::vector<LogitBias>& biases, std::uint32_t vocab_size) {
  absl::Status s = CheckCount("logit_bias", biases.size(), "tokens", SamplingParams::kMaxBiases);
  TokenId last = -1;
  for (const LogitBias& entry : biases) {
    if (!s.ok()) break;
    s.Update(CheckAscends("logit_bias", last, entry.token, vocab_size));
    s.Update(CheckRange(ParameterNamed("logit_bias"), entry.bias));
    last = entry.token;
  }
  return s;
}

absl::Status CheckAllowed(const std::vector<TokenId>& tokens, std::uint32_t vocab_size) {
  absl::Status s =
      CheckCount("allowed_token_ids", tokens.size(), "tokens", SamplingParams::kMaxAllowed);
  TokenId last = -1;
  for (const TokenId token : tokens) {
    if (!s.ok()) break;
    s.Update(CheckAscends("allowed_token_ids", last, token, vocab_size));
    last = token;
  }
  return s;
}

absl::Status CheckBadWords(const std::vector<std::vector<TokenId>>& words,
                           std::uint32_t vocab_size) {
  const absl::Status count =
      CheckCount("bad_words", words.size(), "lists of tokens", SamplingParams::kMaxBadWords);
  if (!count.ok()) return count;
  for (const std::vector<TokenId>& word : words) {
    if (word.empty() || word.size() > SamplingParams::kMaxBadWordTokens) {
      return absl::InvalidArgumentError(absl::StrCat("bad_words: a word has ", word.size(),
                                                     " tokens; it must have 1 to ",
                                                     SamplingParams::kMaxBadWordTokens));
    }
    for (const TokenId token : word) {
      if (token < 0 || static_cast<std::uint32_t>(token) >= vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat("bad_words: token ", token, " is outside the vocabulary of ", vocab_size));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckConstraint(const Constraint& constraint) {
  if (!constraint ||
      (!constraint.text.empty() && constraint.text.size() <= Constraint::kMaxBytes)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the constraint has ", constraint.text.size(),
                                                 " bytes of text; it must have 1 to ",
                                                 Constraint::kMaxBytes));
}

absl::Status CheckTop(const char* name, std::int32_t top) {
  if (top >= LogprobSpec::kOff && top <= LogprobSpec::kMaxTop) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be ", LogprobSpec::kOff, " to ",
                                                 LogprobSpec::kMaxTop, ", is ", top));
}

}  // namespace

absl::Status CheckSampling(const SamplingParams& sampling, std::uint32_t vocab_size) {
  absl::Status s;
  ForEachOfSampler(
      [&](const Parameter& row, auto member) { s.Update(CheckRange(row, sampling.*member)); });
  s.Update(CheckBias(sampling.logit_bias, vocab_size));
  s.Update(CheckAllowed(sampling.allowed_tokens, vocab_size));
  s.Update(CheckBadWords(sampling.bad_words, vocab_size));
  s.Update(CheckDryBreakers(sampling.dry_breakers, vocab_size));
  s.Update(CheckConstraint(sampling.constraint));
  s.Update(CheckThinkingLimit(sampling.thinking, vocab_size));
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
