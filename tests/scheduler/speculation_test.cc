// Tests draft tokens in the scheduler: what they may cost, when they pay, and that no other work
// gets less because of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "scheduler/core/speculation.h"
#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

using PlanRun = flotilla::Run;  // ::testing::Test has a Run of its own

StepTimings Decodes(std::uint32_t rows, std::int64_t ns) {
  return {.start_ns = 0, .compute_ns = ns, .rows = rows, .decode_rows = rows};
}

// Returns costs that have learned `ns` for every number of rows.
StepCosts Learned(const std::function<std::int64_t(std::uint32_t)>& ns) {
  StepCosts costs(1000, 1000);
  for (int round = 0; round < 200; ++round) {
    for (std::uint32_t rows = 1; rows <= 64; ++rows) costs.Observe(Decodes(rows, ns(rows)));
  }
  return costs;
}

// One row in eight is free.
std::int64_t CheapRows(std::uint32_t rows) { return 8000 + 1000 * std::int64_t{rows}; }
// Every row costs as much as the first.
std::int64_t DearRows(std::uint32_t rows) { return 10'000 * std::int64_t{rows}; }

SpeculationLoad Alone(std::uint32_t rows = 1) {
  return {.rows = rows, .tokens = std::uint64_t{rows} * DraftAcceptance::kSure, .prefill_ns = 0};
}

TEST(StepCosts, FollowTheStepsThatOnlyDecode) {
  const StepCosts costs = Learned(CheapRows);
  for (const std::uint32_t rows : {1, 2, 5, 8, 13, 30}) {
    EXPECT_NEAR(static_cast<double>(costs.Ns(rows)), static_cast<double>(CheapRows(rows)), 400)
        << rows;
  }
  StepCosts mixed = costs;
  mixed.Observe({.start_ns = 0, .compute_ns = 1'000'000, .rows = 8, .decode_rows = 7});
  EXPECT_EQ(mixed.Ns(8), costs.Ns(8));
}

TEST(StepCosts, HostileTimingsStayInBounds) {
  StepCosts costs(std::numeric_limits<std::int64_t>::max(), -5);
  for (const std::int64_t ns : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1},
                                std::numeric_limits<std::int64_t>::max()}) {
    for (const std::uint32_t rows : {0u, 1u, 7u, 256u, 257u, ~0u}) {
      for (int i = 0; i < 100; ++i) costs.Observe(Decodes(rows, ns));
      EXPECT_GE(costs.Ns(rows), 0);
    }
  }
  std::int64_t before = 0;
  for (std::uint32_t rows = 1; rows < 1000; ++rows) {
    EXPECT_GE(costs.Ns(rows), before);
    before = costs.Ns(rows);
  }
}

TEST(ChooseDepth, TakesWhatPays) {
  const StepCosts cheap = Learned(CheapRows), dear = Learned(DearRows);
  DraftAcceptance good, bad;
  for (int i = 0; i < 40; ++i) good.OnResult(4, 4, 4, 5);
  for (int i = 0; i < 40; ++i) bad.OnResult(4, 4, 0, 1);
  EXPECT_EQ(ChooseDepth(good, Alone(), cheap, 8), 8u);
  EXPECT_EQ(ChooseDepth(good, Alone(), cheap, 3), 3u);
  EXPECT_EQ(ChooseDepth(bad, Alone(), cheap, 8), 0u);
  EXPECT_EQ(ChooseDepth(good, Alone(), dear, 8), 0u);
  // If every other draft token is right, the depth is smaller.
  const std::uint32_t some = ChooseDepth(DraftAcceptance(), Alone(), cheap, 8);
  EXPECT_GT(some, 0u);
  EXPECT_LT(some, 8u);
}

TEST(ChooseDepth, RowsAreWorthLessInALargeBatch) {
  // Rows are free up to eight. Each further row costs its full share.
  const StepCosts costs =
      Learned([](std::uint32_t rows) { return 10'000 * std::int64_t{std::max(rows, 8u)}; });
  DraftAcceptance good;
  for (int i = 0; i < 40; ++i) good.OnResult(4, 4, 4, 5);
  std::uint32_t before = ChooseDepth(good, Alone(), costs, 16);
  EXPECT_GE(before, 7u);
  for (const std::uint32_t rows : {4u, 8u, 16u, 32u}) {
    const std::uint32_t depth = ChooseDepth(good, Alone(rows), costs, 16);
    EXPECT_LE(depth, before);
    before = depth;
  }
  EXPECT_EQ(before, 0u);
  // A line through these times would give 12 and 0.
  EXPECT_EQ(ChooseDepth(good, Alone(8), costs, 16), 0u);
  EXPECT_EQ(ChooseDepth(DraftAcceptance(), Alone(4), costs, 16), 4u);
}

TEST(ChooseDepth, TriesAgainAfterARestThatGrows) {
  const StepCosts costs = Learned(CheapRows);
  DraftAcceptance acceptance;
  for (int i = 0; i < 40; ++i) acceptance.OnResult(4, 4, 0, 1);
  std::vector<std::uint32_t> rests;
  for (int i = 0; i < 7; ++i) {
    std::uint32_t rest = 0;
    while (ChooseDepth(acceptance, Alone(), costs, 8) == 0) {
      acceptance.OnResult(0, 0, 0, 1);
      ++rest;
    }
    rests.push_back(rest);
    acceptance.OnResult(DraftAcceptance::kTrialDepth, DraftAcceptance::kTrialDepth, 0, 1);
  }
  EXPECT_EQ(rests, (std::vector<std::uint32_t>{32, 64, 128, 256, 512, 512, 512}));
  // A trial that is right ends the rest at once.
  for (int i = 0; i < 512; ++i) acceptance.OnResult(0, 0, 0, 1);
  acceptance.OnResult(DraftAcceptance::kTrialDepth, DraftAcceptance::kTrialDepth,
                      DraftAcceptance::kTrialDepth, 3);
  EXPECT_GT(ChooseDepth(acceptance, Alone(), costs, 8), DraftAcceptance::kTrialDepth);
}

TEST(ChooseDepth, NoDraftTokenIsNoWrongOne) {
  DraftAcceptance acceptance;
  for (int i = 0; i < 1000; ++i) acceptance.OnResult(4, 0, 0, 1);
  EXPECT_EQ(acceptance.chance(), DraftAcceptance::kSure / 2);
}

ExecutorDescription SpeculationGroup(std::uint32_t blocks = 1023, std::uint32_t lag = 1) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.max_draft_tokens = 4;
  group.block_count = blocks + 1;
  group.lag = lag;
  return group;
}

// Makes tokens that repeat every five.
TokenId Round(const worker::BatchItem& item, std::uint32_t output) {
  return static_cast<TokenId>(900 + item.sampling->seed * 7 % 10 + output % 5);
}
// Makes tokens whose n-grams had other successors before, so most draft tokens are wrong.
TokenId Misleading(const worker::BatchItem& item, std::uint32_t output) {
  return output % 3 == 2 ? testing::FakeToken(item.sampling->seed, item.index, output, 1000)
                         : static_cast<TokenId>(900 + output % 3);
}

std::vector<TokenId> TokenIds(const std::vector<EngineEvent>& events) {
  std::vector<TokenId> ids;
  for (const EngineEvent& event : events) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) ids.push_back(token->sampled.token);
  }
  return ids;
}

// Keeps lag + 1 plans unanswered, as an engine does, until nothing is left.
void RunPipelined(CoreHarness& harness, std::uint32_t lag) {
  for (int i = 0; i < 10'000; ++i) {
    while (harness.plans.size() <= lag && harness.Plan() == StallReason::kNone) {
    }
    if (harness.plans.empty()) return;
    harness.Answer();
  }
  FAIL() << "the work does not end";
}

TEST(Speculation, TextThatRepeatsTakesFewerStepsAndTheSameTokens) {
  for (std::uint32_t lag = 1; lag <= 3; ++lag) {
    std::vector<std::vector<TokenId>> answers;
    std::vector<std::uint64_t> plans;
    for (const std::uint32_t depth : {0u, 4u}) {
      CoreHarness harness({.max_draft_tokens = depth}, SpeculationGroup(1023, lag));
      harness.token_of = Round;
      harness.Submit(1, 20, 100);
      RunPipelined(harness, lag);
      answers.push_back(TokenIds(harness.events[1]));
      const CoreCounters counters = harness.core.Snapshot().counters;
      plans.push_back(counters.plans);
      EXPECT_EQ(counters.accepted_tokens > 0, depth > 0);
      EXPECT_GE(counters.drafted_tokens, counters.accepted_tokens);
      EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
    }
    EXPECT_EQ(answers[0].size(), 100u);
    EXPECT_EQ(answers[0], answers[1]);
    EXPECT_LT(plans[1] * 2, plans[0]) << "lag " << lag;
  }
}

TEST(Speculation, UpperBoundRisesByTheDepthAndComesDownWithTheResult) {
  CoreHarness harness({}, SpeculationGroup());
  harness.token_of = Misleading;
  harness.Submit(1, 20, 100);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  harness.Answer();
  const auto length = [&] { return harness.core.OpenSequences().at(0).length; };
  EXPECT_EQ(length().computed, 20u);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  const auto depths = CoreHarness::OpsOf<Speculate>(harness.plans.back());
  ASSERT_EQ(depths.size(), 1u);
  EXPECT_EQ(depths[0].depth, 4u);
  EXPECT_EQ(length().computed_min, 21u);
  EXPECT_EQ(length().scheduled_max, 25u);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);  // the plan only grants a block
  EXPECT_TRUE(CoreHarness::OpsOf<Speculate>(harness.plans.back()).empty());
  EXPECT_EQ(length().computed_min, 22u);
  EXPECT_EQ(length().scheduled_max, 30u);
  const StepResult first = harness.Answer();
  EXPECT_EQ(length().computed, 20 + first.sequences[0].tokens.size());
  EXPECT_EQ(length().scheduled_max, length().computed + 5);
  EXPECT_EQ(length().allocated, 30u);
  harness.Answer();
  EXPECT_EQ(length().scheduled_max, length().computed);
}

TEST(Speculation, RowsOfDraftTokensAreWithinTheBudget) {
  CoreHarness harness({.max_step_tokens = 24, .max_chunk_tokens = 16}, SpeculationGroup());
  harness.token_of = Round;
  for (std::uint64_t id = 1; id <= 6; ++id) harness.Submit(id, 5, 60);
  for (std::uint64_t id = 7; id <= 8; ++id) harness.Submit(id, 200, 20);
  std::uint32_t most_decodes = 0, prefill_steps = 0;
  for (int i = 0; i < 10'000; ++i) {
    while (harness.plans.size() <= 1 && harness.Plan() == StallReason::kNone) {
    }
    if (harness.plans.empty()) break;
    const StepResult result = harness.Answer();
    EXPECT_LE(result.timings.rows, 24u);
    most_decodes = std::max(most_decodes, result.timings.decode_rows);
    // While prompts wait for rows, no sequence drafts.
    const bool full = result.timings.rows - result.timings.decode_rows >= 16;
    prefill_steps += full;
    EXPECT_TRUE(!full || result.timings.decode_rows <= 8);
  }
  EXPECT_GT(most_decodes, 8u);
  EXPECT_GT(prefill_steps, 10u);
  for (std::uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(harness.TokensOf(id), 60u);
}

// Everything just fits without draft tokens, so nobody may be preempted for them.
TEST(Speculation, NobodyIsPreemptedForDraftTokens) {
  for (const auto& tokens : {Round, Misleading}) {
    CoreHarness harness({.watermark_blocks = 0, .prefix_cache = false}, SpeculationGroup(4 * 4));
    harness.token_of = tokens;
    for (std::uint64_t id = 1; id <= 4; ++id) harness.Submit(id, 16, 49);  // 64 positions each
    RunPipelined(harness, 1);
    const CoreCounters counters = harness.core.Snapshot().counters;
    EXPECT_EQ(counters.preemptions, 0u);
    EXPECT_GT(counters.drafted_tokens, 0u);
    for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(harness.TokensOf(id), 49u);
  }
}

TEST(Speculation, BlocksForWrongDraftTokensAreTakenBackBeforeAnybodyIsPreempted) {
  // Blocks have two tokens. The wrong draft tokens of one request hold some blocks, while the other
  // request grows fast.
  ExecutorDescription group = SpeculationGroup(20);
  group.groups[0].tokens_per_block = 2;
  std::vector<std::uint64_t> preemptions;
  for (const std::uint32_t depth : {0u, 4u}) {
    CoreHarness harness({.watermark_blocks = 0, .prefix_cache = false, .max_draft_tokens = depth},
                        group);
    harness.token_of = [](const worker::BatchItem& item, std::uint32_t output) {
      return item.sampling->seed == 1 ? Round(item, output) : Misleading(item, output);
    };
    harness.Submit(1, 8, 17);
    harness.Submit(2, 8, 17);  // 24 positions each, of 40
    RunPipelined(harness, 1);
    const CoreCounters counters = harness.core.Snapshot().counters;
    EXPECT_EQ(counters.trims > 0, depth > 0);
    EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
    preemptions.push_back(counters.preemptions);
  }
  EXPECT_EQ(preemptions[0], preemptions[1]);
}

TEST(Speculation, SequencesOfARequestDraftAndBeamsDoNot) {
  CoreHarness harness({}, SpeculationGroup());
  harness.token_of = [](const worker::BatchItem& item, std::uint32_t output) {
    return static_cast<TokenId>(900 + 10 * item.index.value() + output % 5);
  };
  TokenizedRequest wide = CoreHarness::Request(1, 20, 60), beams = CoreHarness::Request(2, 20, 20);
  wide.sequences = 3;
  beams.beam = BeamOptions{.beams = 3};
  beams.sequences = 3;
  harness.core.Submit(0, wide);
  harness.core.Submit(0, beams);
  std::set<SequenceHandle> drafting, is_beam;
  for (int i = 0; i < 1000 && harness.Plan() == StallReason::kNone; ++i) {
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      if (open.is_beam) is_beam.insert(open.sequence);
    }
    for (const ForkSequence& fork : CoreHarness::OpsOf<ForkSequence>(harness.plans.back())) {
      if (is_beam.contains(fork.parent)) is_beam.insert(fork.child);
    }
    for (const Speculate& op : CoreHarness::OpsOf<Speculate>(harness.plans.back())) {
      EXPECT_FALSE(is_beam.contains(op.sequence));
      drafting.insert(op.sequence);
    }
    harness.Answer();
  }
  EXPECT_EQ(drafting.size(), 3u);
  EXPECT_EQ(harness.TokensOf(1), 180u);
  EXPECT_GT(harness.core.Snapshot().counters.accepted_tokens, 0u);
}

TEST(Speculation, TurnsItselfOffWhereRowsAreDear) {
  CoreHarness harness({}, SpeculationGroup());
  harness.token_of = Round;
  harness.step_ns = [](std::uint32_t prefill_rows, std::uint32_t decode_rows) {
    return 15'000 * std::int64_t{prefill_rows + decode_rows} - 5'000;
  };
  harness.Submit(1, 20, 2000);
  RunPipelined(harness, 1);
  const CoreCounters counters = harness.core.Snapshot().counters;
  EXPECT_LT(counters.drafted_tokens, 2000u / 20);
  EXPECT_EQ(harness.TokensOf(1), 2000u);
}

TEST(Speculation, AResultThatLiesAboutDraftTokensIsRefused) {
  const auto refused = [](const std::function<void(SequenceResult&)>& lie) {
    CoreHarness harness({}, SpeculationGroup());
    harness.token_of = Round;
    TokenizedRequest request = CoreHarness::Request(1, 20, 100);
    request.stop.stop_tokens = {17};
    harness.core.Submit(0, request);
    EXPECT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
    EXPECT_EQ(harness.Plan(), StallReason::kNone);  // one row and four draft tokens
    StepResult result{.epoch = harness.epoch(), .step = harness.plans.front().step};
    SequenceResult& sequence = result.sequences.emplace_back();
    sequence.sequence = harness.core.OpenSequences().at(0).handle;
    sequence.length = 23;
    sequence.first_output = 1;
    sequence.tokens.resize(3, SampledToken{.token = 5});
    sequence.drafted = 4;
    lie(sequence);
    return !harness.core.Apply(result).ok();
  };
  EXPECT_FALSE(refused([](SequenceResult&) {}));
  EXPECT_TRUE(refused([](SequenceResult& r) { r.drafted = 5; }));
  EXPECT_TRUE(refused([](SequenceResult& r) { r.drafted = 1; }));  // fewer than were right
  EXPECT_TRUE(refused([](SequenceResult& r) { r.length = 24; }));
  EXPECT_TRUE(refused([](SequenceResult& r) { r.length = 20; }));
  EXPECT_TRUE(refused([](SequenceResult& r) { r.tokens.clear(); }));
  EXPECT_TRUE(refused([](SequenceResult& r) { r.tokens[0].token = 17; }));  // went on after a stop
  EXPECT_TRUE(refused([](SequenceResult& r) { r.tokens[2].token = 1000; }));
  EXPECT_TRUE(refused([](SequenceResult& r) { r.first_output = 2; }));
  EXPECT_TRUE(refused([](SequenceResult& r) {
    r.length = 26;
    r.tokens.resize(6, SampledToken{.token = 5});
  }));
}

}  // namespace
}  // namespace flotilla::scheduler
