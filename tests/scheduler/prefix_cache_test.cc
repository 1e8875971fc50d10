// Tests the prefix cache as a scheduler uses it: which request computes which tokens.

#include <gtest/gtest.h>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

ExecutorDescription PrefixCacheGroup(std::uint32_t blocks = 1024) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.block_count = blocks + 1;
  return group;
}

TokenizedRequest SamePrompt(std::uint64_t id, std::uint32_t prompt, std::uint32_t max_tokens = 4) {
  TokenizedRequest request = CoreHarness::Request(1, prompt, max_tokens);
  request.id.counter = id;
  return request;
}

std::uint64_t Prefilled(const CoreHarness& harness) {
  return harness.core.Snapshot().counters.prefill_tokens;
}

TEST(PrefixCache, EqualPromptsThatArriveTogetherAreComputedOnce) {
  CoreHarness harness({}, PrefixCacheGroup());
  for (std::uint64_t id = 1; id <= 8; ++id) harness.core.Submit(0, SamePrompt(id, 1000));
  harness.RunAll();
  // 62 whole blocks are shared. Each request computes the 8 tokens after them.
  EXPECT_EQ(Prefilled(harness), 1000u + 7 * 8);
  for (std::uint64_t id = 1; id <= 8; ++id) {
    EXPECT_EQ(harness.TokensOf(id), 4u);
    EXPECT_EQ(harness.EndOf(id)->usage.cached_tokens, id == 1 ? 0u : 992u);
  }
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
}

TEST(PrefixCache, ShortPromptsShareABlockWithinOnePlan) {
  CoreHarness harness({}, PrefixCacheGroup());
  for (std::uint64_t id = 1; id <= 3; ++id) harness.core.Submit(0, SamePrompt(id, 20));
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  const auto runs = CoreHarness::OpsOf<flotilla::Run>(harness.plans.back());
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].count, 20u);
  EXPECT_EQ(runs[1].count, 4u);
  EXPECT_EQ(runs[2].count, 4u);
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(3), 4u);
}

TEST(PrefixCache, AConversationReusesItsAnswers) {
  CoreHarness harness({}, PrefixCacheGroup());
  harness.core.Submit(0, SamePrompt(1, 100, 61));
  harness.RunAll();
  TokenizedRequest next = SamePrompt(2, 100);
  for (const EngineEvent& event : harness.events[1]) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      next.prompt.push_back(token->sampled.token);
    }
  }
  for (TokenId token = 0; token < 20; ++token) next.prompt.push_back(token);
  harness.core.Submit(0, next);
  harness.RunAll();
  // The last output token was never an input, so 160 positions are cached.
  EXPECT_EQ(harness.EndOf(2)->usage.cached_tokens, 160u);
}

// The last block of a prompt that fills its blocks is computed again by the second request, since
// the block of the last token is never taken from the cache. What follows it is cached all the
// same.
TEST(PrefixCache, AnAnswerToAPromptAskedBeforeIsReusedToo) {
  for (const std::uint32_t prompt : {100u, 112u}) {
    CoreHarness harness({}, PrefixCacheGroup());
    harness.core.Submit(0, SamePrompt(1, prompt, 61));
    harness.RunAll();
    TokenizedRequest again = SamePrompt(2, prompt, 200);
    again.sampling.seed = 77;
    harness.core.Submit(0, again);
    harness.RunAll();
    TokenizedRequest next = SamePrompt(3, prompt);
    for (const EngineEvent& event : harness.events[2]) {
      if (const auto* token = std::get_if<TokenEvent>(&event)) {
        next.prompt.push_back(token->sampled.token);
      }
    }
    for (TokenId token = 0; token < 20; ++token) next.prompt.push_back(token);
    harness.core.Submit(0, next);
    harness.RunAll();
    // All whole blocks before the last output token, which was never an input.
    EXPECT_EQ(harness.EndOf(3)->usage.cached_tokens, (prompt + 199) / 16 * 16) << prompt;
  }
}

TEST(PrefixCache, APromptWhoseLogprobsAreWantedIsComputed) {
  CoreHarness harness({}, PrefixCacheGroup());
  harness.core.Submit(0, SamePrompt(1, 100));
  harness.RunAll();
  TokenizedRequest scored = SamePrompt(2, 100);
  scored.logprobs.prompt_top = 0;
  harness.core.Submit(0, scored);
  harness.RunAll();
  EXPECT_EQ(harness.EndOf(2)->usage.cached_tokens, 0u);
  EXPECT_EQ(Prefilled(harness), 200u);
}

TEST(PrefixCache, TenantsAndSaltsNeverMeet) {
  CoreHarness harness({}, PrefixCacheGroup());
  const char* const scopes[][2] = {{"", ""}, {"a", ""}, {"", "a"}, {"a", "b"}, {"ab", ""}};
  std::uint64_t id = 0;
  for (const auto& [tenant, salt] : scopes) {
    TokenizedRequest request = SamePrompt(++id, 100);
    request.tenant = tenant;
    request.cache_salt = salt;
    harness.core.Submit(0, request);
    harness.RunAll();
    EXPECT_EQ(harness.EndOf(id)->usage.cached_tokens, 0u) << tenant << "/" << salt;
  }
}

TEST(PrefixCache, CachedBlocksGiveWayToRequests) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0}, PrefixCacheGroup(10));
  harness.core.Submit(0, SamePrompt(1, 100));
  harness.RunAll();
  harness.Submit(50, 140, 4);  // needs 9 of 10 blocks; 6 are cached
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(50), 4u);
  EXPECT_EQ(harness.core.Snapshot().counters.evictions, 5u);
  harness.core.Submit(0, SamePrompt(2, 100));  // its last blocks were evicted first
  harness.RunAll();
  EXPECT_EQ(harness.EndOf(2)->usage.cached_tokens, 16u);
}

TEST(PrefixCache, ALostGroupHasNoCache) {
  CoreHarness harness({}, PrefixCacheGroup());
  harness.core.Submit(0, SamePrompt(1, 100));
  harness.RunAll();
  harness.core.Lost(harness.epoch());
  harness.Restart();
  harness.core.Submit(0, SamePrompt(2, 100));
  harness.RunAll();
  EXPECT_EQ(harness.EndOf(2)->usage.cached_tokens, 0u);
}

TEST(PrefixCache, CanBeOff) {
  CoreHarness harness({.prefix_cache = false}, PrefixCacheGroup());
  for (std::uint64_t id = 1; id <= 2; ++id) harness.core.Submit(0, SamePrompt(id, 100));
  harness.RunAll();
  EXPECT_EQ(Prefilled(harness), 200u);
}

}  // namespace
}  // namespace flotilla::scheduler
