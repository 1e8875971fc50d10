// Tests groups of layers that keep a window: which blocks come back, what is promised, and what the
// prefix cache finds. The model has one layer in six that keeps every position, as Gemma 3.

#include <gtest/gtest.h>

#include <algorithm>

#include "common/types/kv_needs.h"
#include "scheduler/core/admission.h"
#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

constexpr std::uint32_t kWindow = 512;

KvGroup Window(std::uint32_t window) {
  return {.kind = KvGroup::Kind::kWindow, .window = window, .tokens_per_block = 16};
}

ExecutorDescription WindowsGroup(std::uint32_t blocks, std::uint32_t windows = 5) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.block_count = blocks + 1;
  group.max_context = 16384;
  group.max_step_tokens = 256;
  group.groups = {KvGroup{.tokens_per_block = 16}};
  group.groups.resize(1 + windows, Window(kWindow));
  return group;
}

std::uint64_t Used(const CoreHarness& harness) { return harness.core.Snapshot().load.blocks_used; }

// Runs until all requests have ended, and returns the most blocks that were used at a time.
std::uint64_t MostUsed(CoreHarness& harness) {
  std::uint64_t most = 0;
  while (harness.Plan() == StallReason::kNone || !harness.plans.empty()) {
    most = std::max(most, Used(harness));
    if (!harness.plans.empty()) harness.Answer();
  }
  return most;
}

TEST(Windows, UnneededBlocksAreThoseThatNoLaterRowSees) {
  for (const std::uint32_t window : {1u, 2u, 15u, 16u, 17u, 40u}) {
    const KvGroup group = Window(window);
    for (std::uint32_t length = 0; length < 200; ++length) {
      std::uint32_t blocks = 0;  // the row at position `length` sees those from here on
      while ((blocks + 1) * 16 + window <= length + 1) ++blocks;
      EXPECT_EQ(group.UnneededBlocks(length), blocks) << window << " " << length;
    }
  }
  EXPECT_EQ((KvGroup{.tokens_per_block = 16}).UnneededBlocks(1000), 0u);
}

TEST(Windows, ALongPromptAndItsAnswerUseThirtyPercentOfTheBlocksAtMost) {
  constexpr std::uint32_t kPrompt = 8000, kOutputs = 192;
  CoreHarness harness({}, WindowsGroup(4096));
  harness.Submit(1, kPrompt, kOutputs);
  const std::uint64_t most = MostUsed(harness);
  EXPECT_EQ(harness.TokensOf(1), kOutputs);
  const std::uint64_t all_full = 6 * ((kPrompt + kOutputs) / 16);
  EXPECT_LE(most * 100, all_full * 30) << most << " of " << all_full;
  const Extent extent{.prompt_tokens = kPrompt, .max_tokens = kOutputs};
  EXPECT_LE(most, MostBlocks(extent, WindowsGroup(4096)));
  EXPECT_EQ(Used(harness), 0u);
}

TEST(Windows, ADecodeHoldsItsWindowAndNoMore) {
  CoreHarness harness({.prefix_cache = false}, WindowsGroup(4096));
  harness.Submit(1, 2000, 1000);
  while (harness.TokensOf(1) < 500) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
    if (harness.TokensOf(1) < 2) continue;
    const OpenSequenceView view = harness.core.OpenSequences().at(0);
    for (std::size_t g = 1; g < view.tables.size(); ++g) {
      const auto named =
          view.tables[g].size() - static_cast<std::size_t>(std::count(
                                      view.tables[g].begin(), view.tables[g].end(), kNullBlock));
      ASSERT_LE(named, kWindow / 16 + 1);
    }
  }
}

// A quarter of the blocks that all-full layers would take is enough for a prompt of 8,000 tokens,
// and other requests run beside it without a preemption.
TEST(Windows, APromptIsAdmittedByWhatItsWindowsTake) {
  CoreHarness harness({}, WindowsGroup(900));
  harness.Submit(1, 8000, 100);
  harness.Submit(2, 100, 20);
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 100u);
  EXPECT_EQ(harness.TokensOf(2), 20u);
  EXPECT_EQ(harness.core.Snapshot().counters.preemptions, 0u);
}

// Sequences beyond their windows grow in one group of six, so what is expected of their answers
// takes few blocks: eight of them run at once.
TEST(Windows, ExpectedAnswersTakeNoWindowTwice) {
  CoreHarness harness({}, WindowsGroup(8 * (63 + 5 * 33) + 8 * 32 + 100));
  for (std::uint64_t id = 1; id <= 8; ++id) harness.Submit(id, 1000, 500);
  std::uint32_t most = 0;
  while (harness.Plan() == StallReason::kNone || !harness.plans.empty()) {
    most = std::max(most, harness.core.Snapshot().load.running_requests);
    if (!harness.plans.empty()) harness.Answer();
  }
  EXPECT_EQ(most, 8u);
  EXPECT_EQ(harness.core.Snapshot().counters.preemptions, 0u);
}

TokenizedRequest Alike(std::uint64_t id, std::uint32_t prompt, std::uint32_t more) {
  TokenizedRequest request = CoreHarness::Request(1, prompt, 4);
  request.id.counter = id;
  for (std::uint32_t i = 0; i < more; ++i) request.prompt.push_back(static_cast<TokenId>(i % 7));
  return request;
}

// The windows before token 4,096 were given back while the rest of the first prompt was computed.
// They stay cached.
TEST(Windows, HalfOfALongPromptIsFoundInTheCache) {
  CoreHarness harness({}, WindowsGroup(4096));
  TokenizedRequest first = Alike(1, 8192, 0), second = first;
  second.id.counter = 2;
  second.prompt.resize(4096);
  for (TokenId token = 0; token < 64; ++token) second.prompt.push_back(token);
  harness.core.Submit(0, first);
  harness.RunAll();
  const std::uint64_t before = harness.core.Snapshot().counters.prefill_tokens;
  harness.core.Submit(0, second);
  harness.RunAll();
  const std::uint64_t computed = harness.core.Snapshot().counters.prefill_tokens - before;
  EXPECT_LE(computed * 100, second.prompt.size() * 5);
  EXPECT_EQ(harness.EndOf(2)->usage.cached_tokens, 4096u);
}

// When the pool is full, blocks that were given back first are evicted first: the end of the prompt
// is found, its middle is not.
TEST(Windows, WithoutTheLastWindowNothingIsFound) {
  CoreHarness harness({}, WindowsGroup(500 + 5 * 50 + 64));
  TokenizedRequest first = Alike(1, 8000, 0), middle = first, whole = first;
  middle.id.counter = 2;
  middle.prompt.resize(2000);
  middle.prompt.push_back(3);
  whole.id.counter = 3;
  whole.prompt.push_back(3);
  harness.core.Submit(0, first);
  harness.RunAll();
  harness.core.Submit(0, whole);
  harness.RunAll();
  EXPECT_EQ(harness.EndOf(3)->usage.cached_tokens, 8000u);
  harness.core.Submit(0, middle);
  harness.RunAll();
  EXPECT_EQ(harness.EndOf(2)->usage.cached_tokens, 0u);
  EXPECT_EQ(harness.core.CheckInvariants(), absl::OkStatus());
}

// All windows, as Mistral: the last window alone is a hit.
TEST(Windows, AModelOfWindowsNeedsTheLastOneOnly) {
  ExecutorDescription group = WindowsGroup(120, 0);
  group.groups = {Window(kWindow)};
  CoreHarness harness({}, group);
  TokenizedRequest first = Alike(1, 4000, 0), again = Alike(2, 4000, 5);
  harness.core.Submit(0, first);
  harness.RunAll();
  harness.core.Submit(0, again);
  harness.RunAll();
  EXPECT_EQ(harness.EndOf(2)->usage.cached_tokens, 4000u);
}

// The others fork behind the prompt although the first one was ready long before there were blocks
// for them.
TEST(Windows, WhatForksNeedIsKeptUntilTheyHaveIt) {
  ExecutorDescription group = WindowsGroup(400, 1);
  group.groups[1].window = 20;
  CoreHarness harness({}, group);
  harness.Submit(1, 100, 300);
  TokenizedRequest wide = CoreHarness::Request(2, 200, 60);
  wide.sequences = 4;
  harness.core.Submit(0, wide);
  harness.RunAll();
  EXPECT_EQ(harness.core.Snapshot().counters.forks, 3u);
  // The prompt was computed once.
  EXPECT_EQ(harness.core.Snapshot().counters.prefill_tokens, 100u + 200u + 3u);
}

TEST(Windows, AGroupWithoutAWindowIsRefused) {
  ExecutorDescription group = WindowsGroup(100);
  EXPECT_TRUE(CheckDescription(group).ok());
  group.groups[1].window = 0;
  EXPECT_FALSE(CheckDescription(group).ok());
}

}  // namespace
}  // namespace flotilla::scheduler
