// Tests routing between replicas: the choice, the map of prompts that were sent to replicas, and
// both together in a small simulation of queues.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "router/core/prefix_map.h"
#include "router/core/replica_choice.h"

namespace flotilla::router {
namespace {

std::vector<TokenId> Tokens(std::size_t count, TokenId first) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

PrefixMap::Chain Chain(const std::vector<TokenId>& prompt) {
  return PrefixMap::ChainOf(prompt, "", "");
}

std::uint32_t OverlapOf(const PrefixMap& map, const std::vector<TokenId>& prompt,
                        ReplicaKey replica) {
  for (const PrefixMap::Overlap& overlap : map.Find(Chain(prompt))) {
    if (overlap.replica == replica) return overlap.tokens;
  }
  return 0;
}

TEST(PrefixMap, ChainsAreWholeBlocksBeforeTheLastToken) {
  EXPECT_EQ(Chain({}).size(), 0u);
  EXPECT_EQ(Chain(Tokens(16, 0)).size(), 0u);
  EXPECT_EQ(Chain(Tokens(17, 0)).size(), 1u);
  EXPECT_EQ(Chain(Tokens(33, 0)).size(), 2u);
  EXPECT_EQ(Chain(Tokens(1 << 20, 0)).size(), PrefixMap::kMaxChain);
}

TEST(PrefixMap, ABlockIsKnownWithAllBeforeItAndItsScope) {
  std::vector<TokenId> a = Tokens(64, 0), b = a;
  b[3] = 1000;
  EXPECT_NE(Chain(a).back(), Chain(b).back());
  EXPECT_NE(PrefixMap::ChainOf(a, "x", ""), PrefixMap::ChainOf(a, "", "x"));
  EXPECT_NE(PrefixMap::ChainOf(a, "x", "yz"), PrefixMap::ChainOf(a, "xy", "z"));
  EXPECT_EQ(PrefixMap::ChainOf(a, "x", "y"), PrefixMap::ChainOf(a, "x", "y"));
}

TEST(PrefixMap, FindsTheLongestBeginningOfEachReplica) {
  PrefixMap map(1000);
  const ReplicaKey one(1), two(2), three(3);
  const std::vector<TokenId> prompt = Tokens(100, 0);
  map.OnSent(Chain(Tokens(40, 0)), one);
  map.OnSent(Chain(prompt), two);
  map.OnSent(Chain(Tokens(100, 500)), three);
  EXPECT_EQ(OverlapOf(map, prompt, one), 32u);
  EXPECT_EQ(OverlapOf(map, prompt, two), 96u);
  EXPECT_EQ(OverlapOf(map, prompt, three), 0u);
  EXPECT_TRUE(map.Find(Chain(Tokens(100, 900))).empty());
}

// If a replica no longer has the beginning of a prompt, the later blocks are of no use.
TEST(PrefixMap, AGapEndsAnOverlap) {
  PrefixMap map(1000);
  const std::vector<TokenId> prompt = Tokens(100, 0);
  PrefixMap::Chain chain = Chain(prompt);
  map.OnSent({chain.begin() + 1, chain.end()}, ReplicaKey(1));
  EXPECT_TRUE(map.Find(chain).empty());
  map.OnSent({chain[0]}, ReplicaKey(2));
  EXPECT_EQ(OverlapOf(map, prompt, ReplicaKey(1)), 0u);
  EXPECT_EQ(OverlapOf(map, prompt, ReplicaKey(2)), 16u);
}

TEST(PrefixMap, IsBoundedAndForgetsTheOldestAndTheEndOfAPrompt) {
  PrefixMap map(4);
  map.OnSent(Chain(Tokens(100, 0)), ReplicaKey(1));  // 6 blocks
  EXPECT_EQ(map.size(), 4u);
  EXPECT_EQ(OverlapOf(map, Tokens(100, 0), ReplicaKey(1)), 64u);
  map.OnSent(Chain(Tokens(40, 500)), ReplicaKey(2));
  EXPECT_EQ(map.size(), 4u);
  EXPECT_EQ(OverlapOf(map, Tokens(100, 0), ReplicaKey(1)), 32u);
  EXPECT_EQ(OverlapOf(map, Tokens(40, 500), ReplicaKey(2)), 32u);
}

TEST(PrefixMap, RemembersTheLastFewHolders) {
  PrefixMap map(100);
  const PrefixMap::Chain chain = Chain(Tokens(20, 0));
  for (std::uint64_t g = 1; g <= PrefixMap::kHolders; ++g) map.OnSent(chain, ReplicaKey(g));
  map.OnSent(chain, ReplicaKey(1));    // used again
  map.OnSent(chain, ReplicaKey(100));  // in place of 2
  EXPECT_EQ(map.Find(chain).size(), PrefixMap::kHolders);
  EXPECT_EQ(OverlapOf(map, Tokens(20, 0), ReplicaKey(1)), 16u);
  EXPECT_EQ(OverlapOf(map, Tokens(20, 0), ReplicaKey(2)), 0u);
  EXPECT_EQ(OverlapOf(map, Tokens(20, 0), ReplicaKey(100)), 16u);
}

TEST(ChooseReplica, TakesTheOneThatOwesLessOfTwo) {
  const std::vector<ReplicaChoice> two = {{.outstanding_tokens = 100}, {.outstanding_tokens = 99}};
  std::mt19937_64 random(1);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ChooseReplica(two, random()), 1u);
  EXPECT_EQ(ChooseReplica(std::vector<ReplicaChoice>(1), random()), 0u);
}

TEST(ChooseReplica, EqualOnesAreTakenAlike) {
  std::vector<int> taken(5);
  std::mt19937_64 random(2);
  for (int i = 0; i < 5000; ++i) ++taken[ChooseReplica(std::vector<ReplicaChoice>(5), random())];
  for (const int count : taken) EXPECT_NEAR(count, 1000, 150);
}

TEST(ChooseReplica, APrefixIsWorthItsTokensAndNoMore) {
  std::vector<ReplicaChoice> replicas(10);
  replicas[7] = {.outstanding_tokens = 400, .overlap_tokens = 512};
  std::mt19937_64 random(3);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ChooseReplica(replicas, random()), 7u);
  replicas[7].outstanding_tokens = 513;
  for (int i = 0; i < 50; ++i) EXPECT_NE(ChooseReplica(replicas, random()), 7u);
  replicas[8] = {.outstanding_tokens = 10, .overlap_tokens = 512};  // of two with it, the idler
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ChooseReplica(replicas, random()), 8u);
}

TEST(OutstandingTokens, AreThisRoutersToTheTokenAndTheOthersAsReported) {
  OutstandingTokens outstanding;
  outstanding.OnReport(50);  // of others
  outstanding.OnSent(100);
  outstanding.OnSent(7);
  EXPECT_EQ(outstanding.total(), 157u);
  outstanding.OnAdmitted(100, 100);
  EXPECT_EQ(outstanding.total(), 157u);
  outstanding.OnReport(140);  // these tokens, and 40 of other routers
  EXPECT_EQ(outstanding.total(), 147u);
  outstanding.OnNotServed(7);
  outstanding.OnDone(90);
  EXPECT_EQ(outstanding.total(), 50u) << "before the next report";
  outstanding.OnDone(10);
  outstanding.OnReport(40);
  EXPECT_EQ(outstanding.total(), 40u);
  outstanding.OnSent(30);
  outstanding.OnAdmitted(30, 30);
  outstanding.OnReport(25);  // the report is a step ahead of the events
  EXPECT_EQ(outstanding.total(), 30u);
}

// The result of a simulation with queues of tokens. Each replica computes one token per tick, and
// does not compute prompt tokens that are in its cache.
struct Outcome {
  std::uint64_t longest = 0;  // of all queues at any time
  double hit_ratio = 0;       // of the prompt tokens that a cache could have
  std::vector<std::uint32_t> requests;
};

Outcome Simulate(std::uint64_t seed, bool two_choices, double hot_share) {
  constexpr std::size_t kReplicas = 8;
  constexpr std::uint32_t kPrefix = 512;
  std::mt19937_64 random(seed);
  PrefixMap map(100'000);
  std::vector<std::uint64_t> queue(kReplicas);
  std::vector<bool> cached(kReplicas);
  Outcome outcome;
  outcome.requests.resize(kReplicas);
  std::uint64_t found = 0, findable = 0;
  // On average 300 new tokens per request, for 85 % of what eight replicas can do.
  constexpr double kInterval = 300 / (0.85 * kReplicas);
  double next = 0;
  for (double now = 0; now < 200'000; now += 1) {
    for (; next <= now; next += std::exponential_distribution<double>(1 / kInterval)(random)) {
      const bool hot = std::uniform_real_distribution<double>()(random) < hot_share;
      const auto fresh = static_cast<std::uint32_t>(random() % 601);
      std::vector<TokenId> prompt = hot ? Tokens(kPrefix, 0) : std::vector<TokenId>();
      for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<TokenId>(random() % 100'000));
      const PrefixMap::Chain chain = Chain(prompt);
      std::vector<ReplicaChoice> choices(kReplicas);
      for (std::size_t g = 0; g < kReplicas; ++g) choices[g].outstanding_tokens = queue[g];
      for (const auto& overlap : map.Find(chain)) {
        choices[overlap.replica.value()].overlap_tokens = overlap.tokens;
      }
      const std::size_t g = two_choices ? ChooseReplica(choices, random()) : random() % kReplicas;
      map.OnSent(chain, ReplicaKey(g));
      ++outcome.requests[g];
      queue[g] += fresh;
      if (!hot) continue;
      findable += kPrefix;
      if (cached[g]) found += kPrefix;
      if (!cached[g]) queue[g] += kPrefix;
      cached[g] = true;
    }
    for (std::uint64_t& waiting : queue) {
      outcome.longest = std::max(outcome.longest, waiting);
      if (waiting > 0) --waiting;
    }
  }
  outcome.hit_ratio = findable == 0 ? 0 : static_cast<double>(found) / findable;
  return outcome;
}

TEST(RoutingSimulation, TwoChoicesKeepTheLongestQueueShort) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Outcome two = Simulate(seed, true, 0), any = Simulate(seed, false, 0);
    EXPECT_LT(2 * two.longest, any.longest) << "seed " << seed;
  }
}

TEST(RoutingSimulation, AHotPrefixIsFoundAndOverloadsNobody) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Outcome hot = Simulate(seed, true, 0.7), cold = Simulate(seed, true, 0);
    EXPECT_GT(hot.hit_ratio, 0.95) << "seed " << seed;
    // The longest queue may be longer by the tokens that the prefix saves, and by one request.
    EXPECT_LT(hot.longest, cold.longest + 512 + 600) << "seed " << seed;
    const auto [least, most] = std::minmax_element(hot.requests.begin(), hot.requests.end());
    EXPECT_LT(*most, 3 * *least) << "seed " << seed;
  }
}

}  // namespace
}  // namespace flotilla::router
