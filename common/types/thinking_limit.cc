#include "common/types/thinking_limit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

// The tokens of an answer: those that it has, and drafts for its next ones.
struct AnswerTokens {
  absl::Span<const TokenId> output, drafts;

  std::size_t size() const { return output.size() + drafts.size(); }
  TokenId operator[](std::size_t i) const {
    return i < output.size() ? output[i] : drafts[i - output.size()];
  }
};

// Where the thoughts begin; none: not among these tokens.
std::optional<std::size_t> ThoughtsBegin(const std::vector<TokenId>& begin,
                                         const AnswerTokens& answer) {
  if (begin.empty()) return 0;
  for (std::size_t at = 0; at < ThinkingLimit::kMaxBefore; ++at) {
    if (at + begin.size() > answer.size()) return std::nullopt;
    std::size_t same = 0;
    while (same < begin.size() && answer[at + same] == begin[same]) ++same;
    if (same == begin.size()) return at + same;
  }
  return std::nullopt;
}

}  // namespace

std::optional<TokenId> ForcedToken(const ThinkingLimit& limit, absl::Span<const TokenId> output,
                                   absl::Span<const TokenId> drafts) {
  const AnswerTokens answer{output, drafts};
  const std::size_t size = answer.size();
  if (!limit || size < limit.budget) return std::nullopt;
  const std::optional<std::size_t> begin = ThoughtsBegin(limit.begin, answer);
  if (!begin.has_value()) return std::nullopt;
  const std::size_t over = *begin + limit.budget;
  if (size < over || size >= over + limit.forced.size()) return std::nullopt;
  for (std::size_t i = *begin; i < over; ++i) {
    if (answer[i] == limit.end) return std::nullopt;
  }
  for (std::size_t i = over; i < size; ++i) {
    if (answer[i] != limit.forced[i - over]) return std::nullopt;
  }
  return limit.forced[size - over];
}

absl::Status CheckThinkingLimit(const ThinkingLimit& limit, std::uint32_t vocab_size) {
  if (std::max(limit.begin.size(), limit.forced.size()) > ThinkingLimit::kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "thinking_token_budget: thoughts begin with ", limit.begin.size(), " tokens and end with ",
        limit.forced.size(), "; at most ", ThinkingLimit::kMaxTokens, " are allowed"));
  }
  const auto is_outside = [vocab_size](TokenId token) {
    return token < 0 || static_cast<std::uint32_t>(token) >= vocab_size;
  };
  if (is_outside(limit.end) || std::ranges::any_of(limit.begin, is_outside) ||
      std::ranges::any_of(limit.forced, is_outside)) {
    return absl::InvalidArgumentError(
        absl::StrCat("thinking_token_budget: a token is outside the vocabulary of ", vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace flotilla
