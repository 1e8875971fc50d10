// Tests rows whose constraint's mask was late, and constraints that end a sequence.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/core/group_state_fixture.h"

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Drafts tokens 90, 91, ... whatever it is asked for.
class ConstantProposer final : public Proposer {
 public:
  void Propose(absl::Span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) request.drafts = drafts;
  }
  void Forget(SequenceHandle) override {}

  std::vector<TokenId> drafts;
};

ExecutorDescription LimitsOfDrafts() {
  ExecutorDescription limits = Limits();
  limits.max_draft_tokens = 4;
  return limits;
}

class ConstraintTest : public ::testing::Test {
 protected:
  ConstraintTest() : state_(kEpoch, LimitsOfDrafts(), &proposer_) {}

  // Opens a sequence with a prompt of 1, 2, 3, 4, 5, and applies the chunk that ends it.
  Batch Start(bool constrained = true) {
    OpenSequence open = Opened(kA, {1, 2, 3, 4, 5});
    if (constrained) {
      open.sampling.constraint = {.kind = Constraint::Kind::kRegex, .text = "[a-z]+"};
    }
    plans_.Add(open);
    plans_.Grant(kA, {3, 4, 5, 6});
    plans_.Add(Prefill(kA, 5, true));
    return Apply();
  }

  Batch Apply() {
    absl::StatusOr<Batch> batch = state_.Apply(plans_.Take());
    EXPECT_TRUE(batch.ok()) << batch.status();
    return *std::move(batch);
  }

  absl::StatusOr<StepResult> Complete(const Batch& batch, const std::vector<TokenId>& tokens,
                                      const std::string& refused = "") {
    ItemOutput output{.failed = !refused.empty(), .refused = refused};
    for (const TokenId token : tokens) output.sampled.push_back({.token = token});
    return state_.Complete(batch.step, {output});
  }

  ConstantProposer proposer_;
  GroupState state_;
  testing::PlanBuilder plans_{kEpoch};
};

TEST_F(ConstraintTest, ALateRowOfAPromptRunsAgain) {
  absl::StatusOr<StepResult> result = Complete(Start(), {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sequences[0].length, 4u);
  EXPECT_THAT(result->sequences[0].tokens, IsEmpty());
  EXPECT_EQ(result->sequences[0].finished, std::nullopt);
  for (int i = 0; i < 3; ++i) {  // late again and again
    const Batch batch = Apply();
    ASSERT_EQ(batch.items.size(), 1u);
    EXPECT_EQ(batch.items[0].first_position, 4u);
    EXPECT_EQ(batch.items[0].output_index, 0u);
    EXPECT_THAT(batch.tokens, ElementsAre(5));
    result = Complete(batch, i < 2 ? std::vector<TokenId>{} : std::vector<TokenId>{60});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->sequences[0].length, i < 2 ? 4u : 5u);
  }
  EXPECT_EQ(result->sequences[0].first_output, 0u);
  EXPECT_THAT(Apply().tokens, ElementsAre(60));
}

TEST_F(ConstraintTest, OfDraftsTheTokensBeforeALateRowCount) {
  ASSERT_TRUE(Complete(Start(), {60}).ok());
  proposer_.drafts = {61, 62, 63};
  plans_.Add(Speculate{kA, 3});
  const Batch batch = Apply();
  EXPECT_THAT(batch.tokens, ElementsAre(60, 61, 62, 63));
  absl::StatusOr<StepResult> result = Complete(batch, {61, 62});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sequences[0].length, 7u);
  EXPECT_EQ(result->sequences[0].tokens.size(), 2u);
  const Batch next = Apply();
  EXPECT_THAT(next.tokens, ElementsAre(62, 61, 62, 63));
  result = Complete(next, {});  // the first row is late
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sequences[0].length, 7u);
  EXPECT_EQ(result->sequences[0].drafted, 3u);
  EXPECT_EQ(Apply().items[0].first_position, 7u);
}

TEST_F(ConstraintTest, ARefusalEndsTheSequenceAndSaysWhy) {
  ASSERT_TRUE(Complete(Start(), {60}).ok());
  const absl::StatusOr<StepResult> result = Complete(Apply(), {}, "it is too hard");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sequences[0].finished, FinishReason::kError);
  EXPECT_EQ(result->sequences[0].refused, "it is too hard");
  EXPECT_FALSE(result->sequences[0].is_overload);
  EXPECT_THAT(Apply().items, IsEmpty());
}

TEST_F(ConstraintTest, ABeamWhoseMaskIsLateHasOnePositionLess) {
  OpenSequence open = Opened(kA, {1, 2, 3});
  open.sampling.constraint = {.kind = Constraint::Kind::kRegex, .text = "[a-z]+"};
  open.is_beam = true;
  plans_.Add(open);
  plans_.Grant(kA, {3, 4});
  for (int i = 0; i < 3; ++i) {  // late, late and there
    flotilla::Run run = Prefill(kA, i == 0 ? 3 : 1, false);
    run.candidates = 4;
    plans_.Add(run);
    const Batch batch = Apply();
    ASSERT_EQ(batch.items.size(), 1u);
    EXPECT_EQ(batch.items[0].row_begin + batch.items[0].row_count, i == 0 ? 3u : 1u);
    EXPECT_EQ(batch.items[0].output_index, 0u);
    ItemOutput output;
    if (i == 2) output.candidates = {{.token = 7, .logprob = -1}};
    const absl::StatusOr<StepResult> result = state_.Complete(batch.step, {output});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->sequences[0].length, i == 2 ? 3u : 2u);
    EXPECT_EQ(result->sequences[0].candidates, output.candidates);
    EXPECT_EQ(result->sequences[0].finished, std::nullopt);
  }
}

// It keeps its last position, and it goes on if that is asked of it.
TEST_F(ConstraintTest, ABeamAfterWhichNoTokenMayComeDoesNotEnd) {
  OpenSequence open = Opened(kA, {1, 2, 3});
  open.sampling.constraint = {.kind = Constraint::Kind::kRegex, .text = "[a-z]+"};
  open.is_beam = true;
  plans_.Add(open);
  plans_.Grant(kA, {3, 4});
  flotilla::Run run = Prefill(kA, 3, false);
  run.candidates = 4;
  plans_.Add(run);
  absl::StatusOr<StepResult> result = state_.Complete(Apply().step, {{.refused = "nothing"}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sequences[0].length, 3u);
  EXPECT_THAT(result->sequences[0].candidates, IsEmpty());
  EXPECT_EQ(result->sequences[0].refused, "nothing");
  EXPECT_EQ(result->sequences[0].finished, std::nullopt);
  run = Prefill(kA, 1, false);
  run.append = {7};
  run.candidates = 4;
  plans_.Add(run);
  result = state_.Complete(Apply().step, {{.candidates = {{.token = 7, .logprob = -1}}}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sequences[0].length, 4u);
}

TEST_F(ConstraintTest, ARefusalMayBeForLackOfRoom) {
  const Batch batch = Start();
  const absl::StatusOr<StepResult> result =
      state_.Complete(batch.step, {{.failed = true, .refused = "full", .is_overload = true}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sequences[0].refused, "full");
  EXPECT_TRUE(result->sequences[0].is_overload);
}

TEST_F(ConstraintTest, OtherRowsAreNeverLate) {
  EXPECT_EQ(Complete(Start(/*constrained=*/false), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla::worker
