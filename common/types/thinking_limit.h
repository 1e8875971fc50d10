// ThinkingLimit: how many tokens a reasoning model may think, and what ends its thoughts then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/types/ids.h"

namespace flotilla {

// Where an answer has `budget` tokens of thoughts and `end` is not among them, the next tokens of
// it are `forced`, and what follows is the model's own again. Thoughts begin behind `begin`, which
// is looked for at the begin of the answer, or with the answer, if `begin` is empty.
struct ThinkingLimit {
  static constexpr std::size_t kMaxTokens = 16;  // of `begin`, and of `forced`
  // `begin` starts with one of the first so many tokens, since a model may write white space first.
  static constexpr std::size_t kMaxBefore = 2;

  std::vector<TokenId> begin = {};
  TokenId end = 0;
  std::vector<TokenId> forced = {};  // empty: there is no limit
  std::uint32_t budget = 0;

  explicit operator bool() const { return !forced.empty(); }
  bool operator==(const ThinkingLimit&) const = default;
};

// The token that must follow `output` and `drafts`, which stand behind each other; none if the
// model may choose. It depends on these tokens alone. Where an earlier token of `forced` did not
// come, because a constraint excluded it, none is forced any more. Takes time in proportion to the
// budget where it forces one, else next to none.
std::optional<TokenId> ForcedToken(const ThinkingLimit& limit, absl::Span<const TokenId> output,
                                   absl::Span<const TokenId> drafts);

// INVALID_ARGUMENT: a list is too long, or a token is outside the vocabulary.
absl::Status CheckThinkingLimit(const ThinkingLimit& limit, std::uint32_t vocab_size);

}  // namespace flotilla
