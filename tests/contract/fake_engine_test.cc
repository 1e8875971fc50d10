// FakeEngine passes the contract, and gives the scripted answers.
#include "tests/support/fake_engine.h"

#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/contract/engine_contract.h"
#include "tests/support/engine_recorder.h"
#include "tests/support/fake_executor.h"
#include "tests/support/requests.h"

namespace flotilla::testing {
namespace {

using ::testing::ElementsAre;

class ManualFakeEngine : public EngineUnderTest {
 public:
  Engine& engine() override { return fake_; }
  bool Pump() override { return fake_.Step(); }

 private:
  FakeEngine fake_{{.manual = true}};
};

INSTANTIATE_TEST_SUITE_P(Fake, EngineContract,
                         ::testing::Values(EngineCase{
                             "FakeEngine", [] { return std::make_unique<ManualFakeEngine>(); }}),
                         EngineCaseName);

class FakeEngineTest : public ::testing::Test {
 protected:
  RecordedAnswer Ask(std::uint32_t max_tokens) {
    TokenizedRequest request = TestRequest({1, ++count_}, {1, 2}, max_tokens);
    request.sampling.seed = 4;
    request.stop.stop_tokens = {9};
    recorder_->Expect(request);
    engine_.Submit(request, recorder_);
    return recorder_->Answer(request.id);
  }

  FakeEngine engine_;
  std::shared_ptr<EngineRecorder> recorder_ = std::make_shared<EngineRecorder>();
  std::uint64_t count_ = 0;
};

TEST_F(FakeEngineTest, AnswersInsideSubmitWithPredictableTokens) {
  EXPECT_THAT(Ask(2).token_ids(), ElementsAre(FakeToken(4, SequenceIndex(0), 0, 1000),
                                              FakeToken(4, SequenceIndex(0), 1, 1000)));
  EXPECT_EQ(engine_.submitted().size(), 1u);
}

TEST_F(FakeEngineTest, FollowsItsScripts) {
  engine_.Script({.tokens = {{7, 8}}});
  engine_.Script({.tokens = {{7, 9, 8}}});
  engine_.Script({.tokens = {{7, 8, 6}}});
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kStop, FinishReason::kLength}) {
    const RecordedAnswer answer = Ask(reason == FinishReason::kLength ? 2 : 10);
    EXPECT_EQ(answer.tokens[0].size(), 2u);
    EXPECT_EQ(answer.sequence_ends[0].reason, reason);
    EXPECT_TRUE(answer.ends[0].status.ok());
  }
}

TEST_F(FakeEngineTest, ScriptsSequencesAndBeams) {
  TokenizedRequest request = TestRequest({1, 1}, {1, 2}, 3);
  request.sequences = 2;
  for (const bool beam : {false, true}) {
    if (beam) request.beam = BeamOptions{.beams = 4};
    engine_.Script({.sequences = {{{7, 8}, -1.0f, -0.25f}, {{5, 6, 4, 3}, -2.0f, -0.75f}}});
    recorder_->Expect(request);
    engine_.Submit(request, recorder_);
    const RecordedAnswer answer = recorder_->Answer(request.id);
    EXPECT_THAT(answer.token_ids(0), ElementsAre(7, 8));
    EXPECT_THAT(answer.token_ids(1), ElementsAre(5, 6, 4));
    EXPECT_EQ(answer.tokens[1][2].sampled.logprob, -2.0f);
    ASSERT_EQ(answer.sequence_ends.size(), 2u);
    EXPECT_EQ(answer.sequence_ends[0].reason, FinishReason::kStop);
    EXPECT_EQ(answer.sequence_ends[1].reason, FinishReason::kLength);
    EXPECT_EQ(answer.sequence_ends[1].score, beam ? -0.75f : 0.0f);
    EXPECT_EQ(answer.ends[0].usage.output_tokens, 5u);
  }
}

TEST_F(FakeEngineTest, RefusesAndFailsAsScripted) {
  engine_.Script({.refusal = absl::ResourceExhaustedError("full"), .retry_after_ms = 700});
  RecordedAnswer answer = Ask(5);
  EXPECT_FALSE(answer.accepted);
  EXPECT_EQ(answer.ends[0].retry_after_ms, 700);
  engine_.Script({.error = absl::InternalError("broken"), .error_at = 2});
  answer = Ask(5);
  EXPECT_EQ(answer.tokens[0].size(), 2u);
  EXPECT_EQ(answer.sequence_ends[0].reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsInternal(answer.ends[0].status));
}

}  // namespace
}  // namespace flotilla::testing
