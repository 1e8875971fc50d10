// FakeExecutor passes the contract, and keeps the further promises of its header.
#include "tests/support/fake_executor.h"

#include <gtest/gtest.h>

#include "tests/contract/executor_contract.h"
#include "tests/support/executor_recorder.h"
#include "tests/support/plan_builder.h"

namespace flotilla::testing {
namespace {

ExecutorCase FakeCase() {
  return {"FakeExecutor", [] {
            auto fake = std::make_unique<FakeExecutor>();
            FakeExecutor* raw = fake.get();
            return ContractExecutor{std::move(fake), [raw](Step step) { raw->LoseDuring(step); },
                                    [raw](Step step) { raw->LoseAfter(step); }};
          }};
}

INSTANTIATE_TEST_SUITE_P(Fake, ExecutorContract, ::testing::Values(FakeCase()), ExecutorCaseName);
INSTANTIATE_TEST_SUITE_P(Fake, ExecutorDeathContract, ::testing::Values(FakeCase()),
                         ExecutorCaseName);

class ManualFakeTest : public ::testing::Test {
 protected:
  ManualFakeTest() : executor_({.manual = true}) { EXPECT_TRUE(executor_.Start(&recorder_).ok()); }

  StepPlan FirstPlan(Epoch epoch) {
    PlanBuilder plans(epoch);
    OpenSequence open{.sequence = SequenceHandle(0), .tokens = {1, 2}, .prompt_tokens = 2};
    open.sampling.seed = 5;
    plans.Add(open);
    plans.Grant(SequenceHandle(0), {1});
    plans.Add(flotilla::Run{.sequence = SequenceHandle(0), .count = 2, .sample = true});
    return plans.Take();
  }

  ExecutorRecorder recorder_;
  FakeExecutor executor_;
};

TEST_F(ManualFakeTest, MovesOnlyWhenTold) {
  EXPECT_EQ(recorder_.event_count(), 0u);
  EXPECT_TRUE(executor_.Advance());
  EXPECT_EQ(executor_.epoch(), Epoch(1));
  EXPECT_FALSE(executor_.Advance());
  EXPECT_TRUE(executor_.Execute(FirstPlan(Epoch(1))).ok());
  EXPECT_EQ(executor_.queued(), 1u);
  EXPECT_EQ(recorder_.result_count(), 0u);
  EXPECT_TRUE(executor_.Advance());
  EXPECT_EQ(executor_.queued(), 0u);
  EXPECT_EQ(recorder_.WaitResult(1).sequences[0].tokens[0].token,
            FakeToken(5, SequenceIndex(0), 0, 1000));
}

TEST_F(ManualFakeTest, PauseHoldsStepsAndRestartIsHeld) {
  executor_.AdvanceAll();
  executor_.Pause();
  EXPECT_TRUE(executor_.Execute(FirstPlan(Epoch(1))).ok());
  EXPECT_FALSE(executor_.Advance());
  executor_.HoldRestart();
  executor_.LoseNow();
  executor_.AdvanceAll();
  EXPECT_TRUE(recorder_.WaitLost(1).started.empty());
  EXPECT_EQ(executor_.queued(), 0u);
  executor_.Resume();
  executor_.Restart();
  EXPECT_TRUE(executor_.Advance());
  EXPECT_EQ(executor_.epoch(), Epoch(2));
}

TEST_F(ManualFakeTest, CorruptDigestLosesTheGroup) {
  executor_.CorruptDigest(Step(1));
  executor_.AdvanceAll();
  EXPECT_TRUE(executor_.Execute(FirstPlan(Epoch(1))).ok());
  executor_.AdvanceAll();
  EXPECT_EQ(recorder_.WaitLost(1).cause, Lost::Cause::kDigest);
  EXPECT_EQ(executor_.epoch(), Epoch(2));
}

}  // namespace
}  // namespace flotilla::testing
