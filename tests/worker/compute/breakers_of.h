// DryBreakers for tests, from the breakers that they stand for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "common/types/dry_breakers.h"
#include "common/types/ids.h"

namespace flotilla::worker {

// The head, and the tokens of the tail.
using Breaker = std::vector<TokenId>;

inline DryBreakers BreakersOf(const std::set<Breaker>& breakers) {
  DryBreakers result;
  std::set<std::vector<TokenId>> tails;
  for (const Breaker& breaker : breakers) tails.insert({breaker.begin() + 1, breaker.end()});
  result.tails.assign(tails.begin(), tails.end());
  for (const Breaker& breaker : breakers) {
    const std::vector<TokenId> tail(breaker.begin() + 1, breaker.end());
    result.heads.push_back(breaker[0]);
    result.tail_of.push_back(static_cast<std::uint32_t>(
        std::lower_bound(result.tails.begin(), result.tails.end(), tail) - result.tails.begin()));
  }
  EXPECT_TRUE(CheckDryBreakers(result, 1 << 20).ok());
  return result;
}

}  // namespace flotilla::worker
