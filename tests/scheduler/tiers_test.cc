// What tiers below the KV pool keep, what comes back from them, and who waits for their copies: in
// blocks, plans and virtual time.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

constexpr std::int64_t kUs = 1'000;

ExecutorDescription TiersGroup(std::uint32_t blocks, std::vector<KvTier> tiers) {
  ExecutorDescription group;
  group.vocab_size = 1000;
  group.max_context = 16384;
  group.groups = {KvGroup{.tokens_per_block = 16}};
  group.block_count = blocks + 1;
  group.max_sequences = 64;
  group.max_step_tokens = 8192;
  group.prefill_ns_per_token = 20 * kUs;
  group.decode_ns_per_step = 1'000 * kUs;
  group.tiers = std::move(tiers);
  return group;
}

// The time of a step on a machine that computes a row in 20 us.
std::int64_t TiersStepNs(std::uint32_t prefill_rows, std::uint32_t decode_rows) {
  return (100 + 20 * std::int64_t{prefill_rows + decode_rows}) * kUs;
}

// Request `id` asks prompt `prompt`, which shares no block with the prompt of another number.
TokenizedRequest Ask(std::uint64_t id, std::uint64_t prompt, std::uint32_t tokens = 1000,
                     std::uint32_t max_tokens = 2) {
  TokenizedRequest request = CoreHarness::Request(id, tokens, max_tokens);
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    request.prompt[i] = static_cast<TokenId>((prompt * 7919 + i * 31 + prompt * i) % 1000);
  }
  return request;
}

// Serves one request after the other: prompts first, ..., last. Returns the tokens found cached.
std::uint64_t AskInTurn(CoreHarness& harness, std::uint64_t first, std::uint64_t last,
                        std::uint64_t first_id) {
  std::uint64_t cached = 0;
  for (std::uint64_t prompt = first; prompt <= last; ++prompt) {
    const std::uint64_t id = first_id + prompt;
    harness.core.Submit(harness.now_ns, Ask(id, prompt));
    harness.RunAll();
    cached += harness.EndOf(id)->usage.cached_tokens;
  }
  return cached;
}

class StepSizes : public ::testing::TestWithParam<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(, StepSizes, ::testing::Values(64, 256, 1024),
                         [](const auto& test) { return std::to_string(test.param); });

// 40 prompts of 1,000 tokens go through a pool for 6 of them. The link copies a block in 10 ns.
TEST_P(StepSizes, EvictedPromptsAreFoundInTheTier) {
  CoreHarness harness(
      {.max_step_tokens = GetParam(), .max_chunk_tokens = GetParam()},
      TiersGroup(400, {{.block_count = 20'000, .out_ns_per_block = 10, .in_ns_per_block = 10}}));
  AskInTurn(harness, 1, 40, 0);
  const std::uint64_t cached = AskInTurn(harness, 1, 20, 1000);
  RecordProperty("percent found", std::to_string(100 * cached / (20 * 992)));
  EXPECT_GE(cached, 20 * 992 * 95 / 100);
}

// The same with a machine and a link that take time. The link copies half of the blocks that are
// made, so it keeps the first half of each prompt: blocks without those before them are of no use.
TEST_P(StepSizes, ASlowLinkCarriesWhatItCan) {
  constexpr std::int64_t kOutNs = 660 * kUs;
  CoreHarness harness(
      {.max_step_tokens = GetParam(), .max_chunk_tokens = GetParam()},
      TiersGroup(
          400, {{.block_count = 20'000, .out_ns_per_block = kOutNs, .in_ns_per_block = 10 * kUs}}));
  harness.step_ns = TiersStepNs;
  harness.copies_take_time = true;
  AskInTurn(harness, 1, 40, 0);
  const std::int64_t carries = harness.now_ns / kOutNs;
  ASSERT_LT(carries, 40 * 62 * 6 / 10);
  const std::uint64_t cached = AskInTurn(harness, 1, 40, 1000);
  RecordProperty("blocks that the link can carry", std::to_string(carries));
  RecordProperty("blocks found", std::to_string(cached / 16));
  EXPECT_GE(cached / 16, static_cast<std::uint64_t>(carries) * 9 / 10);
}

// How many blocks the plan begins to copy to tiers.
std::uint64_t CopiedOut(const StepPlan& plan) {
  std::uint64_t blocks = 0;
  for (const BackgroundCopy& copy : CoreHarness::OpsOf<BackgroundCopy>(plan)) {
    blocks += copy.kind == BackgroundCopy::Kind::kOut ? copy.moves.size() : 0;
  }
  return blocks;
}

// A prompt of 200 blocks goes into a pool of 400, one block a step.
TEST(Tiers, CopiesBeginWhenAQuarterOfThePoolIsFilled) {
  CoreHarness harness(
      {.max_step_tokens = 16, .max_chunk_tokens = 16},
      TiersGroup(400, {{.block_count = 20'000, .out_ns_per_block = 10, .in_ns_per_block = 10}}));
  harness.core.Submit(0, Ask(1, 1, 3200));
  for (int filled = 1; filled <= 200; ++filled) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    EXPECT_EQ(CopiedOut(harness.plans.back()) > 0, filled >= 100) << filled;
    harness.Answer();
  }
}

// A prompt of 300 blocks is computed in one step. The next steps are long enough for copies of all
// of them, and the link is slower than the description says.
TEST(Tiers, CopiesPinAQuarterOfThePoolAtMost) {
  CoreHarness harness(
      {.max_step_tokens = 8192, .max_chunk_tokens = 8192},
      TiersGroup(400, {{.block_count = 20'000, .out_ns_per_block = 10, .in_ns_per_block = 10}}));
  harness.core.Submit(0, Ask(1, 1, 4800, 50));
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  harness.Answer();
  std::uint64_t under_way = 0;
  for (int plan = 0; plan < 2; ++plan) {  // no more may be in flight
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    under_way += CopiedOut(harness.plans.back());
  }
  EXPECT_EQ(under_way, 100u);
}

// The tier has room for one prompt of 62 blocks and 38 blocks of another.
TEST(Tiers, ATierThatIsFullDropsTheLastBlocksOfAPromptFirst) {
  CoreHarness harness(
      {}, TiersGroup(70, {{.block_count = 100, .out_ns_per_block = 10, .in_ns_per_block = 10}}));
  AskInTurn(harness, 1, 2, 0);
  harness.core.Submit(0, Ask(100, 3, 800));  // evicts both
  harness.RunAll();
  const std::uint64_t kept = harness.core.Snapshot().tier_blocks;
  EXPECT_EQ(kept, 100u);
  EXPECT_EQ(AskInTurn(harness, 2, 2, 200), (100u - 50u) * 16);
}

// A pool that is too small for its sequences, with a link that is slow to write. Copies take
// nothing from sequences that run.
TEST(Tiers, NobodyWaitsForCopiesToASlowTier) {
  std::int64_t took[2] = {}, waited = 0;
  for (const bool tier : {false, true}) {
    std::vector<KvTier> tiers;
    if (tier) {
      tiers.push_back({.block_count = 1000, .out_ns_per_block = 5'000 * kUs, .in_ns_per_block = 1});
    }
    CoreHarness harness({}, TiersGroup(300, tiers));
    harness.step_ns = TiersStepNs;
    harness.copies_take_time = true;
    for (std::uint64_t id = 1; id <= 120; ++id) {
      harness.core.Submit(0, Ask(id, id, 100, 300));
    }
    while (harness.Plan() == StallReason::kNone) {
      const std::int64_t start_ns = harness.now_ns;
      const StepResult result = harness.Answer();
      if (result.timings.rows == 0) waited += harness.now_ns - start_ns;
    }
    for (std::uint64_t id = 1; id <= 120; ++id) EXPECT_EQ(harness.TokensOf(id), 300u);
    took[tier] = harness.now_ns;
  }
  RecordProperty("ns without", std::to_string(took[0]));
  RecordProperty("ns with", std::to_string(took[1]));
  EXPECT_LE(took[1], took[0] * 105 / 100);
  EXPECT_LE(waited, took[0] / 100);  // in plans that only wait for a copy
}

// One sequence may run. While it does, the prompts of the next three come back.
TEST(Tiers, MoreThanTheHeadOfTheQueueIsReadBackAhead) {
  CoreHarness harness(
      {.max_seqs = 1},
      TiersGroup(400, {{.block_count = 20'000, .out_ns_per_block = 10, .in_ns_per_block = 10}}));
  AskInTurn(harness, 1, 20, 0);
  harness.core.Submit(0, Ask(100, 50, 20, 200));
  for (std::uint64_t prompt = 1; prompt <= 3; ++prompt) {
    harness.core.Submit(0, Ask(100 + prompt, prompt));
  }
  const std::uint64_t before = harness.core.Snapshot().counters.blocks_in;
  for (int plan = 0; plan < 10; ++plan) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  EXPECT_GE(harness.core.Snapshot().counters.blocks_in - before, 3u * 58);
  EXPECT_EQ(harness.EndOf(101), std::nullopt);
  harness.RunAll();
  for (std::uint64_t id = 101; id <= 103; ++id) {
    EXPECT_EQ(harness.EndOf(id)->usage.cached_tokens, 992u);
  }
}

// Blocks are read back ahead only where the running request is not predicted to need them.
TEST(Tiers, ReadingAheadTakesNoBlocksThatRunningRequestsNeed) {
  CoreHarness harness(
      {.max_seqs = 1, .expected_output_permille = 1000},
      TiersGroup(130, {{.block_count = 20'000, .out_ns_per_block = 10, .in_ns_per_block = 10}}));
  AskInTurn(harness, 1, 10, 0);
  harness.core.Submit(0, Ask(100, 50, 20, 1000));  // comes to need 64 blocks
  for (std::uint64_t prompt = 1; prompt <= 3; ++prompt) {
    harness.core.Submit(0, Ask(100 + prompt, prompt));
  }
  harness.RunAll();
  const CoreCounters counters = harness.core.Snapshot().counters;
  EXPECT_EQ(counters.preemptions, 0u);
  EXPECT_EQ(counters.deferrals, 0u);
  EXPECT_LE(counters.blocks_in, 4u * 62);  // what came back was not evicted before it was used
}

// One layer in six keeps every position, the others a window of 512, as Gemma 3.
ExecutorDescription Windowed(std::uint32_t blocks, std::uint32_t slots) {
  ExecutorDescription group =
      TiersGroup(blocks, {{.block_count = slots, .out_ns_per_block = 10, .in_ns_per_block = 10}});
  group.max_step_tokens = 256;
  group.groups.resize(6, {.kind = KvGroup::Kind::kWindow, .window = 512, .tokens_per_block = 16});
  return group;
}

// Two prompts of 8,000 tokens go one after the other through a pool that has room for one. The tier
// gives the first one back: all blocks of the group that keeps every position, and of the others
// the last windows of prompt and answer only.
TEST(Tiers, OfWindowGroupsATierKeepsTheLastWindows) {
  constexpr std::uint64_t kPrompt = 8000 / 16, kWindows = 5 * 512 / 16;
  CoreHarness harness({}, Windowed(1000, 20'000));
  const auto ask = [&](std::uint64_t id, std::uint64_t prompt) {
    harness.core.Submit(harness.now_ns, Ask(id, prompt, 8000, 16));
    harness.RunAll();
    return harness.EndOf(id)->usage.cached_tokens;
  };
  EXPECT_EQ(ask(1, 1), 0u);
  EXPECT_EQ(ask(2, 2), 0u);
  EXPECT_LE(harness.core.Snapshot().tier_blocks, 2 * (kPrompt + 2 * kWindows + 10));
  const std::uint64_t before = harness.core.Snapshot().counters.blocks_in;
  EXPECT_GE(ask(3, 1), 8000u * 95 / 100);
  EXPECT_LE(harness.core.Snapshot().counters.blocks_in - before, kPrompt + kWindows + 10);
}

// Copies of one node go to both tiers, and a hit reads from both.
TEST(Tiers, AHitIsReadFromSeveralTiers) {
  ExecutorDescription group = Windowed(1000, 300);
  group.tiers.push_back({.kind = KvTier::Kind::kDisk,
                         .block_count = 20'000,
                         .out_ns_per_block = 20,
                         .in_ns_per_block = 20});
  CoreHarness harness({}, group);
  for (std::uint64_t prompt = 1; prompt <= 3; ++prompt) {
    harness.core.Submit(harness.now_ns, Ask(prompt, prompt, 4000, 2));
    harness.RunAll();
  }
  for (std::uint64_t prompt = 1; prompt <= 3; ++prompt) {
    harness.core.Submit(harness.now_ns, Ask(10 + prompt, prompt, 4000, 2));
    harness.RunAll();
    EXPECT_GE(harness.EndOf(10 + prompt)->usage.cached_tokens, 4000u * 95 / 100) << prompt;
  }
}

// Requests that decode beyond their windows are preempted, swapped and read back: little is
// computed twice.
TEST(Tiers, VictimsWithWindowsAreSwapped) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0},
                      Windowed(1000, 20'000));
  for (std::uint64_t id = 1; id <= 6; ++id) harness.core.Submit(0, Ask(id, id, 600, 1500));
  harness.RunAll();
  const CoreCounters counters = harness.core.Snapshot().counters;
  EXPECT_GT(counters.preemptions, 0u);
  EXPECT_GE(counters.swapped * 10, counters.preemptions * 8);
  EXPECT_GT(counters.blocks_in, 0u);
  RecordProperty("preemptions", std::to_string(counters.preemptions));
  RecordProperty("prefilled tokens", std::to_string(counters.prefill_tokens));
  EXPECT_LE(counters.prefill_tokens, 6u * 600 + counters.preemptions * 200);
  for (std::uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(harness.TokensOf(id), 1500u);
}

}  // namespace
}  // namespace flotilla::scheduler
