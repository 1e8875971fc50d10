// Tests groups whose K and V are kept by runs (ExecutorDescription::run_tokens): forks copy an open
// run, or are refused; who computes position 0 again; and where draft tokens end.
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/core/group_state_fixture.h"

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Runs of four tokens.
ExecutorDescription RunLimits() {
  ExecutorDescription limits = Limits();
  limits.run_tokens = 4;
  limits.max_draft_tokens = 6;
  return limits;
}

// Drafts as many tokens as it may, all of them right.
class EagerProposer final : public Proposer {
 public:
  void Propose(absl::Span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      for (std::uint32_t i = 1; i <= request.limit; ++i) {
        request.drafts.push_back(static_cast<TokenId>(49 + request.output_index + i));
      }
    }
  }
  void Forget(SequenceHandle) override {}
};

class RunsTest : public GroupStateTest {
 protected:
  RunsTest() : runs_(kEpoch, RunLimits(), &proposer_) {}

  void Open(std::uint32_t tokens) {
    std::vector<TokenId> prompt;
    for (std::uint32_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<TokenId>(1 + i));
    OpenSequence open = Opened(kA, prompt);
    open.stop.max_tokens = 14;
    plans_.Add(open);
    plans_.Grant(kA, {1, 2, 3, 4, 5});
    plans_.Add(Prefill(kA, tokens, true));
    Step();
  }
  void Fork(std::uint32_t length, std::vector<TokenId> tokens) {
    ForkSequence fork{.parent = kA,
                      .child = kB,
                      .index = SequenceIndex(1),
                      .length = length,
                      .tokens = std::move(tokens),
                      .copies = {}};
    if (length % 4 > 0) fork.copies = {{BlockId(1 + length / 4), BlockId(9)}};
    plans_.Add(fork);
  }
  absl::StatusOr<Batch> Apply() { return runs_.Apply(plans_.Take()); }
  StepResult Step() {
    const absl::StatusOr<Batch> batch = Apply();
    EXPECT_TRUE(batch.ok()) << batch.status();
    return runs_.Complete(batch->step, Outputs(*batch)).value();
  }

  EagerProposer proposer_;
  GroupState runs_;
};

TEST_F(RunsTest, AForkWithinARunCopiesThatOfItsParent) {
  Open(6);
  Step();  // a row at position 6
  Fork(6, {60});
  const auto batch = Apply();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(batch->run_copies, ElementsAre(RunCopy{kA, kB}));
  EXPECT_THAT(batch->copies, ElementsAre(BlockCopy{BlockId(2), BlockId(9)}));
}

// The draft model would write into the run that is still to be copied.
TEST_F(RunsTest, NothingIsDraftedBehindARunThatIsCopied) {
  Open(3);
  plans_.Add(Speculate{kA, 6});
  Step();  // position 3 is the last one of its run
  Fork(3, {60});
  const auto batch = Apply();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(batch->run_copies, ElementsAre(RunCopy{kA, kB}));
  ASSERT_EQ(batch->items.size(), 1u);
  EXPECT_EQ(batch->items[0].row_count, 1u);
}

// It needs position 0.
TEST_F(RunsTest, AForkAtTheBeginOfARunCopiesThatOfItsParentToo) {
  Open(6);
  Fork(4, {5, 6});
  const auto batch = Apply();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(batch->run_copies, ElementsAre(RunCopy{kA, kB}));
  EXPECT_THAT(batch->first_rows, IsEmpty());
}

TEST_F(RunsTest, WhoFindsPositionZeroComputesItOnceMore) {
  OpenSequence open = Opened(kA, {21, 22, 23, 24, 25, 26, 27, 28, 29, 30});
  open.cached_tokens = 4;
  plans_.Add(open);
  plans_.Grant(kA, {1, 2, 3});
  plans_.Add(Prefill(kA, 3, false));
  const auto first = Apply();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->first_rows, ElementsAre(FirstRow{kA, 21}));
  EXPECT_THAT(first->tokens, ElementsAre(25, 26, 27));
  ASSERT_TRUE(runs_.Complete(first->step, Outputs(*first)).ok());
  plans_.Add(Prefill(kA, 3, true));
  const auto second = Apply();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->first_rows, IsEmpty());
}

// A parent that has not run yet has nothing to copy.
TEST_F(RunsTest, AForkBeforeItsParentsFirstRowComputesPositionZeroItself) {
  OpenSequence open = Opened(kA, {21, 22, 23, 24, 25, 26});
  open.cached_tokens = 4;
  plans_.Add(open);
  plans_.Grant(kA, {1, 2});
  plans_.Add(ForkSequence{.parent = kA,
                          .child = kB,
                          .index = SequenceIndex(1),
                          .length = 4,
                          .tokens = {25, 26},
                          .copies = {}});
  plans_.Grant(kB, {9});
  plans_.Add(Prefill(kA, 2, true));
  plans_.Add(Prefill(kB, 2, true));
  const auto batch = Apply();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(batch->first_rows, ElementsAre(FirstRow{kA, 21}, FirstRow{kB, 21}));
}

// A full run is its parent's until the parent has a row in the next one.
TEST_F(RunsTest, AForkWithinARunThatItsParentHasLeftIsRefused) {
  Open(7);
  Step();  // the last row of the run
  Fork(7, {60});
  Step();  // and the first row of the next run
  plans_.Add(DropSequence{kB});
  Step();
  Fork(7, {60});
  const auto batch = Apply();
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(batch.status().message(), HasSubstr("forks within a run that its parent has left"));
}

TEST_F(RunsTest, DraftTokensEndWithTheRun) {
  Open(3);
  plans_.Add(Speculate{kA, 6});
  std::vector<std::uint32_t> rows;
  for (int i = 0; i < 4; ++i) rows.push_back(Step().sequences.at(0).length);
  // Position 3 is the last one of its run; then a row and three draft tokens fill one each.
  EXPECT_THAT(rows, ElementsAre(4, 8, 12, 16));
}

}  // namespace
}  // namespace flotilla::worker
