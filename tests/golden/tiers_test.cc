// Preemption by swapping on the real model: answers have the same bits whether a
// request's blocks are kept in memory, on disk, computed again, or never taken.
#include <algorithm>
#include <cstdio>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/engine_runner.h"
#include "tests/support/test_model.h"

namespace flotilla::testing {
namespace {

// Makes twelve requests of about 100 positions. Each has about seven blocks in the end.
std::vector<TokenizedRequest> Requests() {
  std::vector<TokenizedRequest> requests;
  const auto chats = testing::ReadJsonLines("smollm2/greedy.jsonl");
  for (std::uint64_t i = 0; i < 12; ++i) {
    TokenizedRequest& request = requests.emplace_back();
    request.id = {1, i + 1};
    request.prompt = chats[i]["prompt_ids"].get<std::vector<TokenId>>();
    request.sampling = {.temperature = 0.7f, .seed = i};
    request.stop.max_tokens = 60;
    request.logprobs.output_top = 2;
  }
  return requests;
}

struct Outcome {
  std::vector<std::vector<std::uint32_t>> bits;
  scheduler::CoreCounters counters;
  std::uint32_t most_preemptions = 0;
};

Outcome Serve(const std::shared_ptr<const model::Checkpoint>& file, std::uint32_t blocks,
              const worker::TierOptions& tiers,
              const std::vector<TokenizedRequest>& requests = Requests()) {
  EngineRunner::Options options;
  options.rank.kv_blocks = blocks;
  options.rank.tiers = tiers;
  options.rank.poison_blocks = true;
  options.together = true;                    // so that the same requests are preempted in each run
  options.core.expected_output_permille = 0;  // start as many as fit at first
  options.core.watermark_blocks = 0;
  EngineRunner runner(file, options);
  Outcome outcome;
  for (const Answer& answer : runner.Run(requests)) {
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    outcome.bits.push_back(answer.Bits());
    outcome.most_preemptions = std::max(outcome.most_preemptions, answer.usage.preemptions);
  }
  outcome.counters = runner.engine().probe().Read().core.counters;
  const scheduler::CoreCounters& c = outcome.counters;
  std::printf(
      "%4u blocks, host %u, disk %u: %lu preemptions, %lu of them swapped, %lu blocks out, "
      "%lu in, %lu tokens prefilled\n",
      blocks, tiers.host_blocks, tiers.disk_blocks, static_cast<unsigned long>(c.preemptions),
      static_cast<unsigned long>(c.swapped), static_cast<unsigned long>(c.blocks_out),
      static_cast<unsigned long>(c.blocks_in), static_cast<unsigned long>(c.prefill_tokens));
  return outcome;
}

TEST(TiersTest, SwappedAnswersHaveTheSameBits) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  const Outcome undisturbed = Serve(file, 400, {});
  EXPECT_EQ(undisturbed.counters.preemptions, 0u);

  const Outcome recomputed = Serve(file, 30, {});
  EXPECT_EQ(recomputed.bits, undisturbed.bits);
  EXPECT_GT(recomputed.counters.preemptions, 0u);
  EXPECT_EQ(recomputed.counters.swapped, 0u);

  // Reading a block back takes microseconds, computing it milliseconds: every victim
  // that has a full block is swapped while there is room, the others are recomputed.
  for (const worker::TierOptions& tiers :
       {worker::TierOptions{.host_blocks = 200}, {.disk_blocks = 200}}) {
    const Outcome swapped = Serve(file, 30, tiers);
    EXPECT_EQ(swapped.bits, undisturbed.bits);
    EXPECT_GT(swapped.counters.swapped, swapped.counters.preemptions / 2);
    EXPECT_GT(swapped.counters.blocks_in, 0u);
    EXPECT_LT(swapped.counters.prefill_tokens, recomputed.counters.prefill_tokens);
    EXPECT_LE(swapped.most_preemptions, 3u);
  }

  // The tier has two slots, so most preempted blocks find no room and are computed again.
  const Outcome mixed = Serve(file, 30, {.host_blocks = 2});
  EXPECT_EQ(mixed.bits, undisturbed.bits);
  EXPECT_GT(mixed.counters.prefill_tokens, undisturbed.counters.prefill_tokens);
}

// The last four requests are so short that they never have a whole block. They still run when eight
// others come to need their third block, so they are the first victims, and are recomputed. Later
// victims have whole blocks, and are swapped.
TEST(TiersTest, OneRunSwapsAndRecomputes) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  std::vector<TokenizedRequest> requests = Requests();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.resize(i < 8 ? 28 : 3);
    if (i >= 8) requests[i].stop.max_tokens = 12;
  }
  // All can start, and no block is left. The first block of the eight prompts is the same one. One
  // block of a pool is never used.
  constexpr std::uint32_t kBlocks = 1 + 8 + 4 + 1;
  const Outcome undisturbed = Serve(file, 400, {}, requests);
  EXPECT_EQ(undisturbed.counters.preemptions, 0u);
  const Outcome both = Serve(file, kBlocks, {.host_blocks = 200}, requests);
  EXPECT_EQ(both.bits, undisturbed.bits);
  const auto count = [&both](scheduler::PreemptionReason reason) {
    return both.counters.preempted[static_cast<std::size_t>(reason)].count;
  };
  EXPECT_GT(count(scheduler::PreemptionReason::kSwapped), 0u);
  EXPECT_GT(count(scheduler::PreemptionReason::kNoWholeBlock), 0u);
  EXPECT_GT(both.counters.blocks_in, 0u);
  EXPECT_GT(both.counters.prefill_tokens, undisturbed.counters.prefill_tokens);
  EXPECT_LE(both.most_preemptions, 3u);
}

}  // namespace
}  // namespace flotilla::testing
