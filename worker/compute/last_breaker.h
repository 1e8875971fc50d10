// Where DRY begins to count: behind the last breaker of a history (DryBreakers).
//
// Pure. The breakers come from clients, and so does the history, so the cost has a bound whatever
// they are. Let b be the number of heads and of all tokens of tails, at most 36,864. 2,048 tokens
// are looked at one by one, each with O(20 log b) comparisons. Only if none of them is a breaker
// and there are more, an automaton is built in O(b) steps, and takes O(1) steps for each further
// token. Any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/types/dry_breakers.h"
#include "common/types/ids.h"

namespace flotilla::worker {

// Whether a token is a breaker by itself.
bool IsBreaker(const DryBreakers& breakers, TokenId token);

// The tokens of `latest` [tokens, the latest first] that are behind its last breaker, or `most` if
// they are more. The last breaker is the one whose head comes last; of several at this head it is
// the longest. The first `period` + `most` tokens of `latest` repeat themselves after every
// `period` tokens, which is at least 1, and `latest` has that many.
std::uint32_t SinceBreaker(const DryBreakers& breakers, absl::Span<const TokenId> latest,
                           std::uint32_t most, std::uint32_t period);

}  // namespace flotilla::worker
