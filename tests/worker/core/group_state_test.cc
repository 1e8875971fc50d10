#include "worker/core/group_state.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/core/group_state_fixture.h"

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> TokensOf(const SequenceResult& result) {
  std::vector<TokenId> tokens;
  for (const SampledToken& token : result.tokens) tokens.push_back(token.token);
  return tokens;
}

TEST_F(GroupStateTest, PromptInChunksThenDecodesByDefault) {
  plans_.Add(Opened(kA, {1, 2, 3, 4, 5}));
  plans_.Grant(kA, {9});
  plans_.Add(Prefill(kA, 3, false));
  Batch batch = Apply();
  ASSERT_EQ(batch.items.size(), 1u);
  EXPECT_EQ(batch.items[0].first_position, 0u);
  EXPECT_FALSE(batch.items[0].samples);
  EXPECT_FALSE(batch.items[0].decode);
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3));
  EXPECT_THAT(batch.table(0, GroupIndex(0)), ElementsAre(9));
  StepResult result = Complete(batch);
  EXPECT_EQ(result.sequences[0].length, 3u);
  EXPECT_THAT(result.sequences[0].tokens, IsEmpty());
  EXPECT_EQ(result.sequences[0].finished, std::nullopt);

  plans_.Grant(kA, {4});
  plans_.Add(Prefill(kA, 2, true));
  batch = Apply();
  EXPECT_EQ(batch.items[0].first_position, 3u);
  EXPECT_EQ(batch.items[0].output_index, 0u);
  EXPECT_THAT(batch.tokens, ElementsAre(4, 5));
  result = Complete(batch);
  EXPECT_EQ(result.sequences[0].length, 5u);
  EXPECT_EQ(result.sequences[0].first_output, 0u);
  EXPECT_THAT(TokensOf(result.sequences[0]), ElementsAre(50));

  batch = Apply();  // an empty plan: the sequence decodes
  EXPECT_TRUE(batch.items[0].decode);
  EXPECT_EQ(batch.decode_rows, 1u);
  EXPECT_EQ(batch.items[0].first_position, 5u);
  EXPECT_EQ(batch.items[0].output_index, 1u);
  EXPECT_THAT(batch.tokens, ElementsAre(50));
  EXPECT_THAT(batch.table(0, GroupIndex(0)), ElementsAre(9, 4));
  EXPECT_THAT(TokensOf(Complete(batch).sequences[0]), ElementsAre(51));
}

TEST_F(GroupStateTest, ItemsInAscendingHandlesWithFlatRows) {
  plans_.Add(Opened(kC, {1}));
  plans_.Grant(kC, {1});
  plans_.Add(Prefill(kC, 1, true));
  RunPlan();
  plans_.Add(Opened(kB, {7, 8, 9}));
  plans_.Grant(kB, {2});
  plans_.Add(Opened(kA, {3, 4}));
  plans_.Grant(kA, {3});
  plans_.Add(Prefill(kB, 3, true));
  plans_.Add(Prefill(kA, 1, false));
  const Batch batch = Apply();
  ASSERT_EQ(batch.items.size(), 3u);
  EXPECT_EQ(batch.items[0].sequence, kA);
  EXPECT_EQ(batch.items[1].sequence, kB);
  EXPECT_EQ(batch.items[2].sequence, kC);
  EXPECT_EQ(batch.items[1].row_begin, 1u);
  EXPECT_EQ(batch.items[2].row_begin, 4u);
  EXPECT_THAT(batch.tokens, ElementsAre(3, 7, 8, 9, 50));
  const StepResult result = Complete(batch);
  EXPECT_EQ(result.sequences[0].sequence, kA);
  EXPECT_EQ(result.sequences[2].sequence, kC);
}

TEST_F(GroupStateTest, StopTokenEndsAndLaterDecodesAreNoOps) {
  OpenSequence open = Opened(kA, {1});
  open.stop.stop_tokens = {3, 51, 99};
  plans_.Add(open);
  plans_.Grant(kA, {1});
  plans_.Add(Prefill(kA, 1, true));
  EXPECT_EQ(RunPlan().sequences[0].finished, std::nullopt);
  StepResult result = RunPlan();
  EXPECT_THAT(TokensOf(result.sequences[0]), ElementsAre(51));
  EXPECT_EQ(result.sequences[0].finished, FinishReason::kStop);
  for (int i = 0; i < 2; ++i) {
    const Batch batch = Apply();
    EXPECT_THAT(batch.items, IsEmpty());
    EXPECT_THAT(batch.noops, ElementsAre(kA));
    result = Complete(batch);
    EXPECT_TRUE(result.sequences[0].noop);
    EXPECT_EQ(result.sequences[0].length, 2u);
    EXPECT_EQ(result.sequences[0].first_output, 2u);
    EXPECT_EQ(result.sequences[0].finished, FinishReason::kStop);
  }
  plans_.Add(DropSequence{kA});
  EXPECT_THAT(RunPlan().sequences, IsEmpty());
  EXPECT_EQ(state_.digest(), [] {
    PlanDigest only_run;
    only_run.AddRun(Step(1), kA, 1);
    return only_run.value();
  }());
}

TEST_F(GroupStateTest, LengthEndsAtMaxTokensAndAtFullContext) {
  OpenSequence open = Opened(kA, {1});
  open.stop.max_tokens = 2;
  plans_.Add(open);
  plans_.Grant(kA, {1});
  plans_.Add(Prefill(kA, 1, true));
  OpenSequence wide = Opened(kB, std::vector<TokenId>(14, 1));
  wide.stop.max_tokens = 1000;
  plans_.Add(wide);
  plans_.Grant(kB, {2, 3, 4, 5, 6, 7});
  plans_.Add(Prefill(kB, 14, true));
  RunPlan();
  EXPECT_EQ(RunPlan().sequences[0].finished, FinishReason::kLength);
  StepResult result;
  for (int step = 3; step <= 10; ++step) {
    EXPECT_EQ(state_.View(kB)->finished, std::nullopt) << step;
    result = RunPlan();
  }
  EXPECT_EQ(result.sequences[1].finished, FinishReason::kLength);
  EXPECT_EQ(state_.View(kB)->tokens.size(), 24u);  // the context
  EXPECT_EQ(state_.View(kB)->length, 23u);
}

TEST_F(GroupStateTest, NothingToGenerateEndsWithThePrompt) {
  for (const bool sample : {false, true}) {
    const SequenceHandle sequence = sample ? kB : kA;
    OpenSequence open = Opened(sequence, {1, 2});
    open.stop.max_tokens = 0;
    plans_.Add(open);
    plans_.Grant(sequence, {sequence.value() + 1});
    plans_.Add(Prefill(sequence, 1, false));
    EXPECT_EQ(RunPlan().sequences.back().finished, std::nullopt);
    plans_.Add(Prefill(sequence, 1, sample));
    const Batch batch = Apply();
    EXPECT_FALSE(batch.items[0].samples);
    const SequenceResult result = Complete(batch).sequences.back();
    EXPECT_EQ(result.finished, FinishReason::kLength);
    EXPECT_THAT(result.tokens, IsEmpty());
  }
  // Only the sequence that was asked to sample counts as a decoder.
  EXPECT_THAT(Apply().noops, ElementsAre(kB));
}

TEST_F(GroupStateTest, ResumesAfterEarlierOutputAndCachedBlocks) {
  OpenSequence open = Opened(kA, {1, 2, 3, 4, 60, 61});
  open.prompt_tokens = 4;
  open.cached_tokens = 4;
  open.stop.max_tokens = 4;
  plans_.Add(open);
  plans_.Grant(kA, {8, 9});
  plans_.Add(Prefill(kA, 2, true));
  const Batch batch = Apply();
  EXPECT_EQ(batch.items[0].first_position, 4u);
  EXPECT_EQ(batch.items[0].output_index, 2u);
  EXPECT_THAT(batch.tokens, ElementsAre(60, 61));
  EXPECT_EQ(Complete(batch).sequences[0].finished, std::nullopt);
  EXPECT_EQ(RunPlan().sequences[0].finished, FinishReason::kLength);
}

TEST_F(GroupStateTest, PromptTargetsFollowTheirRowsAndEndWithThePrompt) {
  OpenSequence open = Opened(kA, {1, 2, 3, 4, 60});
  open.prompt_tokens = 4;
  open.logprobs.prompt_top = 2;
  plans_.Add(open);
  plans_.Grant(kA, {8, 9});
  plans_.Add(flotilla::Run{.sequence = kA, .count = 2, .prompt_logprobs = true});
  Batch batch = Apply();
  EXPECT_THAT(batch.items[0].prompt_targets, ElementsAre(2, 3));
  EXPECT_EQ(Complete(batch).sequences[0].prompt_first, 1u);
  plans_.Add(flotilla::Run{.sequence = kA, .count = 3, .sample = true, .prompt_logprobs = true});
  batch = Apply();
  EXPECT_THAT(batch.items[0].prompt_targets, ElementsAre(4));
  const SequenceResult result = Complete(batch).sequences[0];
  EXPECT_EQ(result.prompt_first, 3u);
  EXPECT_EQ(result.prompt.size(), 1u);
  EXPECT_EQ(result.first_output, 1u);
}

TEST_F(GroupStateTest, DeferLeavesOutOneStep) {
  plans_.Add(Opened(kA, {1}));
  plans_.Grant(kA, {1});
  plans_.Add(Prefill(kA, 1, true));
  RunPlan();
  plans_.Add(Defer{kA});
  EXPECT_THAT(RunPlan().sequences, IsEmpty());
  EXPECT_THAT(TokensOf(RunPlan().sequences[0]), ElementsAre(51));
}

TEST_F(GroupStateTest, BeamRunsWhatItIsSent) {
  OpenSequence open = Opened(kA, {1});
  open.is_beam = true;
  open.stop = {.stop_tokens = {7}, .max_tokens = 2};
  plans_.Add(open);
  plans_.Grant(kA, {1});
  plans_.Add(flotilla::Run{.sequence = kA, .count = 1, .candidates = 2});
  Batch batch = Apply();
  EXPECT_EQ(batch.items[0].candidates, 2u);
  EXPECT_FALSE(batch.items[0].samples);
  std::vector<ItemOutput> outputs(1);
  outputs[0].candidates = {{7, -1.0f}, {8, -2.0f}};
  const StepResult result = state_.Complete(batch.step, outputs).value();
  EXPECT_EQ(result.sequences[0].candidates, outputs[0].candidates);
  EXPECT_EQ(result.sequences[0].finished, std::nullopt);
  EXPECT_THAT(RunPlan().sequences, IsEmpty());  // it never decodes by default
  // Neither stop tokens nor lengths end a beam. The scheduler, which chooses its tokens, ends it.
  for (const TokenId token : {7, 8, 9}) {
    plans_.Add(flotilla::Run{.sequence = kA, .count = 1, .append = {token}, .candidates = 1});
    batch = Apply();
    EXPECT_THAT(batch.tokens, ElementsAre(token));
    EXPECT_EQ(batch.items[0].output_index, state_.View(kA)->tokens.size() - 1);
    outputs[0].candidates = {{1, -1.0f}};
    EXPECT_EQ(state_.Complete(batch.step, outputs).value().sequences[0].finished, std::nullopt);
  }
  EXPECT_THAT(state_.View(kA)->tokens, ElementsAre(1, 7, 8, 9));
}

TEST_F(GroupStateTest, CandidatesThatDoNotFitChangeNothing) {
  OpenSequence open = Opened(kA, {1});
  open.is_beam = true;
  plans_.Add(open);
  plans_.Grant(kA, {1});
  plans_.Add(flotilla::Run{.sequence = kA, .count = 1, .candidates = 2});
  const Batch batch = Apply();
  std::vector<ItemOutput> outputs(1);
  EXPECT_FALSE(state_.Complete(batch.step, outputs).ok());
  outputs[0].candidates = {{1, 0}, {2, 0}, {3, 0}};
  EXPECT_FALSE(state_.Complete(batch.step, outputs).ok());
  outputs[0].candidates = {{1, 0}, {1000, 0}};
  EXPECT_FALSE(state_.Complete(batch.step, outputs).ok());
  outputs[0].candidates = {{1, 0}};
  EXPECT_TRUE(state_.Complete(batch.step, outputs).ok());
}

TEST_F(GroupStateTest, ForkSharesFullBlocksAndCopiesTheLast) {
  plans_.Add(Opened(kA, {1, 2, 3, 4, 5, 6}));
  plans_.Grant(kA, {1, 2});
  plans_.Add(Prefill(kA, 5, false));
  RunPlan();
  plans_.Add(ForkSequence{.parent = kA,
                          .child = kB,
                          .index = SequenceIndex(1),
                          .length = 5,
                          .tokens = {6},
                          .copies = {{BlockId(2), BlockId(3)}}});
  plans_.Add(Prefill(kA, 1, true));
  plans_.Add(Prefill(kB, 1, true));
  const Batch batch = Apply();
  EXPECT_THAT(batch.copies, ElementsAre(BlockCopy{BlockId(2), BlockId(3)}));
  ASSERT_EQ(batch.items.size(), 2u);
  EXPECT_EQ(batch.items[1].index, SequenceIndex(1));
  EXPECT_EQ(batch.items[1].first_position, 5u);
  EXPECT_THAT(batch.table(1, GroupIndex(0)), ElementsAre(1, 3));
  Complete(batch);
  plans_.Add(DropSequence{kA});
  EXPECT_EQ(RunPlan().sequences.size(), 1u);
  EXPECT_THAT(state_.View(kB)->tokens, ElementsAre(1, 2, 3, 4, 5, 6, 50, 51));
}

// A sequence that decodes may be forked at an earlier position. If this is the end of a block,
// there is nothing to copy.
TEST_F(GroupStateTest, ForkOfADecoderFromBefore) {
  plans_.Add(Opened(kA, {1, 2, 3, 4, 5}));
  plans_.Grant(kA, {1, 2});
  plans_.Add(Prefill(kA, 5, true));
  RunPlan();
  RunPlan();
  plans_.Add(ForkSequence{
      .parent = kA, .child = kB, .index = SequenceIndex(1), .length = 4, .tokens = {5, 60}});
  plans_.Grant(kB, {3});
  plans_.Add(Prefill(kB, 2, true));
  const Batch batch = Apply();
  EXPECT_THAT(batch.copies, IsEmpty());
  EXPECT_THAT(batch.table(1, GroupIndex(0)), ElementsAre(1, 3));
  EXPECT_EQ(batch.items[1].output_index, 1u);
  Complete(batch);
  EXPECT_THAT(state_.View(kA)->tokens, ElementsAre(1, 2, 3, 4, 5, 50, 51, 52));
  EXPECT_THAT(state_.View(kB)->tokens, ElementsAre(1, 2, 3, 4, 5, 60, 51));
}

TEST(GroupStateTiers, CopiesAreStartedOnceAndEndOnce) {
  ExecutorDescription limits = Limits(1);
  limits.tiers = {{.block_count = 2}};
  GroupState state(kEpoch, limits);
  const auto plan = [&](std::uint64_t step, std::vector<BackgroundCopy> copies) {
    StepPlan made{.epoch = kEpoch, .step = Step(step), .digest = state.digest(), .ops = {}};
    PlanDigest added;
    for (const BackgroundCopy& copy : copies) {
      for (const BackgroundCopy::Move& move : copy.moves) {
        added.AddCopy(made.step, copy.id, copy.tier, move.block, move.slot);
      }
      made.ops.emplace_back(copy);
    }
    made.digest += added.value();
    return made;
  };
  const BackgroundCopy out{.id = 3, .moves = {{BlockId(2), 1}}};
  const Batch batch = state.Apply(plan(1, {out})).value();
  EXPECT_THAT(batch.background, ElementsAre(out));
  EXPECT_EQ(state.copies_outstanding(), 1u);
  EXPECT_FALSE(state.Complete(Step(1), {}, {4}).ok());  // nobody began it
  EXPECT_THAT(state.Complete(Step(1), {}, {3})->copies_done, ElementsAre(3u));
  EXPECT_EQ(state.copies_outstanding(), 0u);
  // A slot beyond the tier is refused, and so is an id that is in use.
  GroupState other(kEpoch, limits);
  EXPECT_FALSE(other.Apply(plan(1, {{.id = 1, .moves = {{BlockId(2), 2}}}})).ok());
  EXPECT_FALSE(state.Apply(plan(2, {out})).ok());
}

TEST_F(GroupStateTest, FailedItemEndsItsSequenceAlone) {
  for (SequenceHandle sequence : {kA, kB}) {
    plans_.Add(Opened(sequence, {1}));
    plans_.Grant(sequence, {sequence.value() + 1});
    plans_.Add(Prefill(sequence, 1, true));
  }
  const Batch batch = Apply();
  std::vector<ItemOutput> outputs = Outputs(batch);
  outputs[0] = ItemOutput{.failed = true};
  const StepResult result = state_.Complete(batch.step, outputs).value();
  EXPECT_EQ(result.sequences[0].finished, FinishReason::kError);
  EXPECT_THAT(result.sequences[0].tokens, IsEmpty());
  EXPECT_EQ(result.sequences[1].finished, std::nullopt);
  const StepResult next = RunPlan();
  EXPECT_TRUE(next.sequences[0].noop);
  EXPECT_FALSE(next.sequences[1].noop);
}

TEST_F(GroupStateTest, OutputsThatDoNotFitChangeNothing) {
  plans_.Add(Opened(kA, {1}));
  plans_.Grant(kA, {1});
  plans_.Add(Prefill(kA, 1, true));
  const Batch batch = Apply();
  std::vector<ItemOutput> good = Outputs(batch);
  EXPECT_TRUE(absl::IsFailedPrecondition(state_.Complete(Step(2), good).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(state_.Complete(Step(1), {}).status()));
  std::vector<ItemOutput> bad = good;
  bad[0].sampled.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(state_.Complete(Step(1), bad).status()));
  for (TokenId token : {-1, 100}) {
    bad[0].sampled = {SampledToken{.token = token}};
    EXPECT_TRUE(absl::IsInvalidArgument(state_.Complete(Step(1), bad).status()));
  }
  bad = good;
  bad[0].prompt.emplace_back();
  EXPECT_TRUE(absl::IsInvalidArgument(state_.Complete(Step(1), bad).status()));
  EXPECT_TRUE(state_.Complete(Step(1), good).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(state_.Complete(Step(1), good).status()));
}

TEST_F(GroupStateTest, ForeignPlansHaveNoEffect) {
  plans_.Add(Opened(kA, {1}));
  const StepPlan good = plans_.Take();
  StepPlan plan = good;
  plan.epoch = Epoch(6);
  EXPECT_TRUE(absl::IsFailedPrecondition(state_.Apply(plan).status()));
  for (std::uint64_t step : {0, 2}) {
    plan = good;
    plan.step = Step(step);
    EXPECT_TRUE(absl::IsFailedPrecondition(state_.Apply(plan).status()));
  }
  EXPECT_THAT(state_.Sequences(), IsEmpty());
  ASSERT_TRUE(state_.Apply(good).ok());
  // With a lag of one the next plan waits for the completion.
  const StepPlan second = plans_.Take();
  EXPECT_TRUE(absl::IsFailedPrecondition(state_.Apply(second).status()));
  ASSERT_TRUE(state_.Complete(Step(1), {}).ok());
  EXPECT_TRUE(state_.Apply(second).ok());
}

TEST_F(GroupStateTest, WrongDigestEndsTheEpoch) {
  plans_.Add(Opened(kA, {1}));
  StepPlan plan = plans_.Take();
  ++plan.digest;
  EXPECT_TRUE(absl::IsDataLoss(state_.Apply(plan).status()));
  --plan.digest;
  EXPECT_TRUE(absl::IsFailedPrecondition(state_.Apply(plan).status()));
}

class LagTest : public GroupStateTest {
 protected:
  LagTest() : GroupStateTest(3) {}
};

TEST_F(LagTest, DecodesInItsMicroBatchOnceEveryLagSteps) {
  OpenSequence open = Opened(kA, {1, 2});
  open.micro_batch = 2;
  plans_.Add(open);
  plans_.Grant(kA, {1, 2});
  plans_.Add(Prefill(kA, 1, false));
  plans_.Add(Opened(kB, {1}));
  plans_.Grant(kB, {3});
  plans_.Add(Prefill(kB, 1, true));
  const Batch first = Apply();
  // Chunks of one prompt in consecutive plans, the first not completed.
  plans_.Add(Prefill(kA, 1, true));
  const Batch second = Apply();
  const Batch third = Apply();
  EXPECT_THAT(third.items, IsEmpty());  // step 3: micro_batch 0, but B ran in 1
  EXPECT_THAT(state_.Unfinished(), ElementsAre(Step(1), Step(2), Step(3)));
  EXPECT_TRUE(absl::IsFailedPrecondition(state_.Apply(StepPlan{kEpoch, Step(4)}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(state_.Complete(Step(2), Outputs(second)).status()));
  Complete(first);
  const Batch fourth = Apply();
  EXPECT_THAT(fourth.items, IsEmpty());  // micro_batch 1: nobody
  Complete(second);
  const Batch fifth = Apply();  // micro_batch 2: A, which ran in step 2
  ASSERT_EQ(fifth.items.size(), 1u);
  EXPECT_EQ(fifth.items[0].sequence, kA);
  EXPECT_THAT(fifth.tokens, ElementsAre(50));
  Complete(third);
  const Batch sixth = Apply();  // micro_batch 0: B
  ASSERT_EQ(sixth.items.size(), 1u);
  EXPECT_EQ(sixth.items[0].sequence, kB);
}

TEST_F(LagTest, DropWhileARunIsInFlight) {
  OpenSequence open = Opened(kA, {1});
  open.micro_batch = 1;
  plans_.Add(open);
  plans_.Grant(kA, {1});
  plans_.Add(Prefill(kA, 1, true));
  const Batch first = Apply();
  plans_.Add(DropSequence{kA});
  plans_.Add(Opened(kA, {9, 9}));  // the handle is free again
  plans_.Grant(kA, {1});
  plans_.Add(Prefill(kA, 1, false));
  const Batch second = Apply();
  const StepResult result = Complete(first);
  EXPECT_THAT(TokensOf(result.sequences[0]), ElementsAre(50));
  EXPECT_THAT(state_.View(kA)->tokens, ElementsAre(9, 9));
  EXPECT_EQ(Complete(second).sequences[0].length, 1u);
}

}  // namespace
}  // namespace flotilla::worker
