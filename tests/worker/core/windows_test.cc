// Tests worker/core with a window group: its tables, what may be given back, hits and forks.
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/core/group_state_fixture.h"

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;

constexpr GroupIndex kAll{0}, kLast{1};  // the groups

ExecutorDescription WindowLimits() {
  ExecutorDescription limits = Limits();
  limits.groups.push_back({.kind = KvGroup::Kind::kWindow, .window = 5, .tokens_per_block = 4});
  return limits;
}

class WindowsTest : public GroupStateTest {
 protected:
  WindowsTest() : windows_(kEpoch, WindowLimits()) {}

  // Opens kA with a prompt of 12 tokens, of which the first 10 have run.
  void StartA() {
    plans_.Add(Opened(kA, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
    plans_.Grant(kA, {1, 2, 3});
    plans_.Grant(kA, {4, 5, 6}, kLast);
    plans_.Add(Prefill(kA, 10, false));
    Step();
  }
  void Step() {
    const absl::StatusOr<Batch> batch = windows_.Apply(plans_.Take());
    ASSERT_TRUE(batch.ok()) << batch.status();
    tables_ = {batch->tables.begin(), batch->tables.end()};
    ASSERT_TRUE(windows_.Complete(batch->step, Outputs(*batch)).ok());
  }
  std::string Refusal() { return std::string(windows_.Apply(plans_.Take()).status().message()); }
  std::vector<std::int32_t> Table(SequenceHandle sequence, GroupIndex group) {
    const auto table = windows_.View(sequence)->tables[group.value()];
    return {table.begin(), table.end()};
  }

  GroupState windows_;
  std::vector<absl::Span<const std::int32_t>> tables_;
};

TEST_F(WindowsTest, WhatIsGivenBackLeavesEntriesWithoutABlock) {
  StartA();
  plans_.Add(
      ReleaseBlocks{.sequence = kA, .group = kLast, .count = 1});  // position 10 sees 6 to 10
  plans_.Add(Prefill(kA, 2, true));
  Step();
  EXPECT_THAT(Table(kA, kAll), ElementsAre(1, 2, 3));
  EXPECT_THAT(Table(kA, kLast), ElementsAre(0, 5, 6));
  plans_.Add(ReleaseBlocks{.sequence = kA, .group = kLast, .count = 1});
  plans_.Grant(kA, {7});
  plans_.Grant(kA, {4}, kLast);  // the block of before
  Step();
  EXPECT_THAT(Table(kA, kLast), ElementsAre(0, 0, 6, 4));
  plans_.Add(DropSequence{.sequence = kA});
  Step();
}

TEST_F(WindowsTest, WhatTheNextRowSeesIsNotGivenBack) {
  StartA();
  plans_.Add(ReleaseBlocks{.sequence = kA, .group = kLast, .count = 2});
  EXPECT_EQ(Refusal(), "sequence 0: gives back blocks that it needs");
}

TEST_F(WindowsTest, AGroupThatKeepsAllGivesNothingBack) {
  StartA();
  plans_.Add(ReleaseBlocks{.sequence = kA, .group = kAll, .count = 1});
  EXPECT_EQ(Refusal(), "sequence 0: gives back blocks that it needs");
}

TEST_F(WindowsTest, NoMoreIsGivenBackThanThereIs) {
  StartA();
  plans_.Add(ReleaseBlocks{.sequence = kA, .group = kLast, .count = 4});
  EXPECT_EQ(Refusal(), "sequence 0: number of blocks");
}

TEST_F(WindowsTest, SomethingIsGivenBack) {
  StartA();
  plans_.Add(ReleaseBlocks{.sequence = kA, .group = kLast, .count = 0});
  EXPECT_EQ(Refusal(), "sequence 0: number of blocks");
}

TEST_F(WindowsTest, NothingIsGivenBackAfterARunInTheSamePlan) {
  StartA();
  plans_.Add(Prefill(kA, 2, true));
  plans_.Add(ReleaseBlocks{.sequence = kA, .group = kLast, .count = 1});
  EXPECT_EQ(Refusal(), "sequence 0: gives back what this step reads");
}

TEST_F(WindowsTest, AHitBeginsWithTheBlocksOfItsWindow) {
  StartA();
  OpenSequence hit = Opened(kB, {1, 2, 3, 4, 5, 6, 7, 8, 20});
  hit.cached_tokens = 8;  // position 8 sees 4 to 8
  plans_.Add(hit);
  plans_.Skip(kB, kLast, 1);
  plans_.Grant(kB, {1, 2, 8});
  plans_.Grant(kB, {5, 9}, kLast);
  plans_.Add(Prefill(kB, 1, true));
  Step();
  EXPECT_THAT(Table(kB, kLast), ElementsAre(0, 5, 9));
}

TEST_F(WindowsTest, AForkSharesItsWindow) {
  StartA();
  plans_.Add(ReleaseBlocks{.sequence = kA, .group = kLast, .count = 1});
  plans_.Add(Prefill(kA, 2, true));
  Step();
  // At length 11 a child sees positions from 7 on.
  const ForkSequence fork{.parent = kA,
                          .child = kB,
                          .index = SequenceIndex(1),
                          .length = 11,
                          .tokens = {30},
                          .copies = {{BlockId(3), BlockId(10)}, {BlockId(6), BlockId(11)}}};
  // The builder knows forks of one group only, so its digest is another.
  StepPlan plan = plans_.Take();
  plan.ops = {fork, DropSequence{.sequence = kA}, Prefill(kB, 1, true)};
  const absl::StatusOr<Batch> batch = windows_.Apply(plan);
  EXPECT_TRUE(absl::IsDataLoss(batch.status())) << batch.status();  // all but the digest is right
  EXPECT_THAT(Table(kB, kAll), ElementsAre(1, 2, 10));
  EXPECT_THAT(Table(kB, kLast), ElementsAre(0, 5, 11));
}

TEST_F(WindowsTest, AForkWhereBlocksWereGivenBackIsRefused) {
  StartA();
  plans_.Add(ReleaseBlocks{.sequence = kA, .group = kLast, .count = 1});
  plans_.Add(Prefill(kA, 2, true));
  Step();
  plans_.Add(ForkSequence{.parent = kA,
                          .child = kB,
                          .index = SequenceIndex(1),
                          .length = 7,
                          .tokens = {8, 9, 10, 11, 12},
                          .copies = {{BlockId(2), BlockId(10)}, {BlockId(5), BlockId(11)}}});
  EXPECT_EQ(Refusal(), "sequence 1: forks where its parent has given blocks back");
}

}  // namespace
}  // namespace flotilla::worker
