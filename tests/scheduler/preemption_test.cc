// Why a preempted request's blocks are copied to a tier or computed again, as the
// scheduler reports it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// Runs two requests that make 16 tokens each, in a pool of 44 positions. To compute a token takes 1
// ms. The second request is preempted.
std::vector<Preemption> PreemptTheSecond(std::vector<KvTier> tiers, std::uint32_t block_tokens = 4,
                                         std::uint32_t second_prompt = 16) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.block_count = 44 / block_tokens + 1;
  group.groups[0].tokens_per_block = block_tokens;
  group.prefill_ns_per_token = kMs;
  group.tiers = std::move(tiers);
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0}, group);
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t) { return (prefill + 1) * kMs; };
  harness.Submit(1, 16, 16);
  harness.Submit(2, second_prompt, 16);
  std::vector<Preemption> all;
  for (int step = 0; step < 1000 && harness.Plan() == StallReason::kNone; ++step) {
    harness.Answer();
    for (const Preemption& one : harness.core.TakePreemptions()) all.push_back(one);
  }
  EXPECT_EQ(harness.TokensOf(1), 16u);
  EXPECT_EQ(harness.TokensOf(2), 16u);
  std::uint64_t counted = 0;
  for (const PreemptionTotals& totals : harness.core.Snapshot().counters.preempted) {
    counted += totals.count;
  }
  EXPECT_EQ(counted, all.size());
  EXPECT_FALSE(all.empty());
  return all;
}

TEST(Preemption, WithoutTiersBlocksAreComputedAgain) {
  const Preemption first = PreemptTheSecond({}).at(0);
  EXPECT_EQ(first.victim.counter, 2u);
  EXPECT_EQ(first.winner.counter, 2u);  // the victim itself was short of a block
  EXPECT_TRUE(first.decoding);
  EXPECT_EQ(first.reason, PreemptionReason::kNoTier);
  EXPECT_EQ(first.swapped_blocks, 0u);
  EXPECT_GE(first.blocks, 5u);
  EXPECT_EQ(first.swap_ns, 0);
  EXPECT_EQ(first.cost_ns, first.blocks * first.recompute_ns);
}

TEST(Preemption, CheapCopiesAreMade) {
  const Preemption first =
      PreemptTheSecond(
          {{.block_count = 16, .out_ns_per_block = kMs / 2, .in_ns_per_block = kMs / 4}})
          .at(0);
  EXPECT_EQ(first.reason, PreemptionReason::kSwapped);
  EXPECT_EQ(first.swap_ns, kMs * 3 / 4);
  EXPECT_GT(first.recompute_ns, first.swap_ns);
  EXPECT_EQ(first.swapped_blocks, first.blocks);  // the last one was just filled
  EXPECT_EQ(first.cost_ns, first.blocks * first.swap_ns);
}

TEST(Preemption, DearCopiesAreNot) {
  const Preemption first =
      PreemptTheSecond(
          {{.block_count = 16, .out_ns_per_block = 90 * kMs, .in_ns_per_block = 10 * kMs}})
          .at(0);
  EXPECT_EQ(first.reason, PreemptionReason::kRecomputed);
  EXPECT_EQ(first.swap_ns, 100 * kMs);
  EXPECT_EQ(first.swapped_blocks, 0u);
  EXPECT_EQ(first.cost_ns, first.blocks * first.recompute_ns);
}

TEST(Preemption, TheCheapestTierDecides) {
  const Preemption first =
      PreemptTheSecond({{.block_count = 16, .out_ns_per_block = 90 * kMs, .in_ns_per_block = kMs},
                        {.kind = KvTier::Kind::kDisk,
                         .block_count = 16,
                         .out_ns_per_block = kMs,
                         .in_ns_per_block = kMs}})
          .at(0);
  EXPECT_EQ(first.reason, PreemptionReason::kSwapped);
  EXPECT_EQ(first.swap_ns, 2 * kMs);
}

TEST(Preemption, ThereMayBeNothingToCopy) {
  const Preemption first =
      PreemptTheSecond({{.block_count = 16, .out_ns_per_block = 1, .in_ns_per_block = 1}},
                       /*block_tokens=*/20, /*second_prompt=*/2)
          .at(0);
  EXPECT_EQ(first.winner.counter, 1u);
  EXPECT_EQ(first.reason, PreemptionReason::kNoWholeBlock);
  EXPECT_EQ(first.blocks, 1u);
}

TEST(Preemption, ATierWithLittleRoomKeepsTheBeginning) {
  const Preemption first =
      PreemptTheSecond({{.block_count = 2, .out_ns_per_block = 1, .in_ns_per_block = 1}}).at(0);
  EXPECT_EQ(first.reason, PreemptionReason::kSwapped);
  EXPECT_EQ(first.swapped_blocks, 2u);
  EXPECT_GT(first.cost_ns, (first.blocks - 3) * first.recompute_ns);
}

}  // namespace
}  // namespace flotilla::scheduler
