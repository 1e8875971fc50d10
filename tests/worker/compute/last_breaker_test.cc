#include "worker/compute/last_breaker.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/compute/breakers_of.h"

namespace flotilla::worker {
namespace {

// The definition, place by place.
std::uint32_t NaiveSinceBreaker(const std::set<Breaker>& breakers,
                                const std::vector<TokenId>& latest, std::uint32_t most) {
  for (std::size_t at = 0; at < latest.size(); ++at) {
    std::size_t longest = 0;
    for (const Breaker& breaker : breakers) {
      const std::size_t size = breaker.size();
      if (size > at + 1 || size <= longest) continue;
      if (std::equal(breaker.rbegin(), breaker.rend(), latest.begin() + (at + 1 - size))) {
        longest = size;
      }
    }
    if (longest > 0) return std::min(static_cast<std::uint32_t>(at + 1 - longest), most);
  }
  return most;
}

// How many tokens from latest[period] on equal those from latest[0] on.
std::uint32_t RepeatsAfter(const std::vector<TokenId>& latest, std::size_t period) {
  const auto end = std::mismatch(latest.begin() + period, latest.end(), latest.begin()).first;
  return static_cast<std::uint32_t>(end - latest.begin() - period);
}

// Breakers are rare, so that they are found near the latest token, far from it, where the history
// no longer repeats itself, or nowhere.
TEST(LastBreaker, EqualsTheNaiveReference) {
  const unsigned seed = 29;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int near = 0, far = 0, in_the_last_period = 0, nowhere = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::size_t most_period = std::vector<std::size_t>{5, 200, 5000}[random() % 3];
    const std::size_t period = 1 + random() % most_period;
    std::vector<TokenId> latest(2 * period + random() % 4000);
    const std::size_t end = period + random() % (latest.size() - period);  // of what repeats
    for (std::size_t i = 0; i < latest.size(); ++i) {
      const bool repeats = i >= period && i < end;
      latest[i] = repeats ? latest[i - period] : static_cast<TokenId>(random() % 2);
    }
    std::set<Breaker> breakers;
    for (std::uint32_t i = random() % 6; i > 0; --i) {
      Breaker breaker(1 + random() % (1 + DryBreakers::kMaxTailTokens));
      // Many are the end of what repeats, or begin as a part of the history does.
      const std::size_t from = std::min(random() % 2 == 0 ? end : random() % latest.size(),
                                        latest.size() - breaker.size());
      std::reverse_copy(latest.begin() + from, latest.begin() + from + breaker.size(),
                        breaker.begin());
      if (random() % 2 == 0) breaker.back() = 2;
      if (breaker.size() > 10) breakers.insert(breaker);
    }
    const std::uint32_t most = RepeatsAfter(latest, period);
    if (most == 0) continue;
    for (const std::uint32_t cut : {most, 1 + static_cast<std::uint32_t>(random() % most)}) {
      const std::uint32_t since = NaiveSinceBreaker(breakers, latest, cut);
      ASSERT_EQ(SinceBreaker(BreakersOf(breakers), latest, cut, period), since)
          << "round " << round << ", period " << period << ", most " << cut;
      near += since < std::min<std::size_t>(cut, 2000);
      far += since >= 2048 && since < cut;
      in_the_last_period += since >= period && since < cut;
      nowhere += since == cut;
    }
  }
  EXPECT_GT(near, 20);
  EXPECT_GT(far, 20);
  EXPECT_GT(in_the_last_period, 20);
  EXPECT_GT(nowhere, 20);
}

TEST(LastBreaker, TheLongestTailOfTheLastHeadCounts) {
  // Beyond the tokens that are looked at one by one, too.
  for (const std::size_t before : {0, 10, 2045, 2046, 2047, 2048, 2060, 5000}) {
    // From the latest token on: 9 for `before` tokens, then 4, 3, 2, 1.
    std::vector<TokenId> latest(before, 9);
    for (const TokenId token : {4, 3, 2, 1}) latest.push_back(token);
    const auto size = static_cast<std::uint32_t>(latest.size());
    latest.insert(latest.end(), latest.begin(), latest.begin() + size);
    const auto since = [&](const std::set<Breaker>& breakers) {
      return SinceBreaker(BreakersOf(breakers), latest, size, size);
    };
    const auto behind = static_cast<std::uint32_t>(before);
    EXPECT_EQ(since({}), size);
    EXPECT_EQ(since({{1, 2, 3, 4}}), behind);
    EXPECT_EQ(since({{1, 2}, {1, 2, 3, 4}}), behind);
    EXPECT_EQ(since({{1, 2}, {1, 2, 3, 5}}), behind + 2);
    EXPECT_EQ(since({{1, 2}, {3}}), behind + 1) << "the last head counts";
    EXPECT_EQ(since({{2, 3}, {1, 2, 3, 4}}), behind + 1);
    EXPECT_EQ(since({{1, 2, 3}, {7, 1, 2, 3, 4}, {7, 2, 3, 4}}), behind + 1);
  }
}

}  // namespace
}  // namespace flotilla::worker
