#include "tests/contract/executor_contract.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "tests/support/executor_recorder.h"
#include "tests/support/plan_builder.h"

namespace flotilla::testing {
namespace {

constexpr SequenceHandle kGreedy{0}, kSampled{2};
constexpr std::uint64_t kSteps = 8;  // of Script

// Two sequences: a greedy one of 10 prompt tokens in two chunks, and from step 2 a
// sampled one; both then decode.
std::vector<StepPlan> Script(Epoch epoch) {
  PlanBuilder plans(epoch);
  OpenSequence greedy{.sequence = kGreedy, .request = {1, 1}, .tokens = {}, .prompt_tokens = 10};
  for (TokenId token = 1; token <= 10; ++token) greedy.tokens.push_back(token);
  greedy.sampling.temperature = 0;
  greedy.stop.max_tokens = 5;  // ends in step 6
  greedy.logprobs = {.output_top = 3, .prompt_top = 2};
  plans.Add(greedy);
  plans.Grant(kGreedy, {1});
  plans.Add(Run{.sequence = kGreedy, .count = 4, .prompt_logprobs = true});
  std::vector<StepPlan> script = {plans.Take()};

  OpenSequence sampled{
      .sequence = kSampled, .request = {1, 2}, .tokens = {3, 1, 2}, .prompt_tokens = 3};
  sampled.sampling.seed = 77;
  plans.Add(sampled);
  plans.Grant(kSampled, {2});
  plans.Add(Run{.sequence = kGreedy, .count = 6, .sample = true, .prompt_logprobs = true});
  plans.Add(Run{.sequence = kSampled, .count = 3, .sample = true});
  script.push_back(plans.Take());
  while (script.size() < kSteps) script.push_back(plans.Take());
  return script;
}

class ExecutorSession {
 public:
  explicit ExecutorSession(const ExecutorCase& param) : made_(param.make()) {}
  ~ExecutorSession() { made_.executor->Stop(); }

  StepExecutor& executor() { return *made_.executor; }
  const ContractExecutor& made() const { return made_; }

  Epoch Start() {
    const absl::Status status = executor().Start(&recorder);
    EXPECT_TRUE(status.ok()) << status;
    return recorder.WaitReady(1);
  }

  // Runs the script's steps from `first`, one at a time, and returns their results.
  std::vector<StepResult> RunSteps(const std::vector<StepPlan>& script, std::uint64_t first,
                                   std::uint64_t last) {
    std::vector<StepResult> results;
    for (std::uint64_t step = first; step <= last; ++step) {
      const std::size_t before = recorder.result_count();
      EXPECT_TRUE(executor().Execute(script[step - 1]).ok());
      results.push_back(recorder.WaitResult(before + 1));
    }
    return results;
  }

  ExecutorRecorder recorder;

 private:
  ContractExecutor made_;
};

// Returns the parts of the results that do not depend on epoch and clock.
std::vector<std::vector<SequenceResult>> Answers(const std::vector<StepResult>& results) {
  std::vector<std::vector<SequenceResult>> answers;
  for (const StepResult& result : results) answers.push_back(result.sequences);
  return answers;
}

TEST_P(ExecutorContract, DescribesItsGroup) {
  ExecutorSession session(GetParam());
  EXPECT_GT(session.Start(), Epoch(0));
  const ExecutorDescription d = session.recorder.description();
  EXPECT_FALSE(d.model_id.empty());
  EXPECT_GE(d.vocab_size, 16u);
  EXPECT_GE(d.max_context, 32u);
  EXPECT_NE(d.numerics_id, 0u);
  EXPECT_GE(d.block_count, 8u);
  EXPECT_GE(d.max_sequences, 4u);
  EXPECT_GE(d.max_step_tokens, 16u);
  EXPECT_GE(d.lag, 1u);
  ASSERT_FALSE(d.groups.empty());
  EXPECT_GT(d.groups[0].tokens_per_block, 0u);
  EXPECT_GT(d.groups[0].bytes_per_block, 0u);
  EXPECT_GT(d.prefill_ns_per_token, 0);
  EXPECT_GT(d.decode_ns_per_step, 0);
}

TEST_P(ExecutorContract, ResultsSayWhatEachSequenceDid) {
  ExecutorSession session(GetParam());
  const Epoch epoch = session.Start();
  const auto results = session.RunSteps(Script(epoch), 1, kSteps);
  const std::uint32_t vocab = session.recorder.description().vocab_size;

  ASSERT_EQ(results[0].sequences.size(), 1u);
  EXPECT_EQ(results[0].sequences[0].length, 4u);
  EXPECT_TRUE(results[0].sequences[0].tokens.empty());
  EXPECT_EQ(results[0].sequences[0].prompt_first, 1u);
  EXPECT_EQ(results[0].sequences[0].prompt.size(), 4u);
  EXPECT_EQ(results[0].timings.rows, 4u);
  EXPECT_EQ(results[1].sequences[0].prompt_first, 5u);
  EXPECT_EQ(results[1].sequences[0].prompt.size(), 5u);  // the last row has no target
  EXPECT_EQ(results[1].sequences[0].prompt[0].token, 6);
  EXPECT_EQ(results[1].sequences[0].prompt[0].top.size(), 2u);
  EXPECT_EQ(results[2].timings.rows, 2u);
  EXPECT_EQ(results[2].timings.decode_rows, 2u);

  for (std::uint32_t i = 1; i < kSteps; ++i) {
    ASSERT_EQ(results[i].sequences.size(), 2u);
    const SequenceResult& greedy = results[i].sequences[0];
    const SequenceResult& sampled = results[i].sequences[1];
    EXPECT_EQ(greedy.sequence, kGreedy);
    EXPECT_EQ(sampled.sequence, kSampled);
    EXPECT_EQ(sampled.length, 3 + i - 1);
    EXPECT_EQ(sampled.first_output, i - 1);
    ASSERT_EQ(sampled.tokens.size(), 1u);
    EXPECT_LT(static_cast<std::uint32_t>(sampled.tokens[0].token), vocab);
    EXPECT_LE(sampled.tokens[0].logprob, 0);
    EXPECT_TRUE(sampled.tokens[0].top.empty());
    EXPECT_EQ(greedy.finished.has_value(), i >= 5) << i;
    EXPECT_EQ(greedy.noop, i > 5) << i;
    ASSERT_EQ(greedy.tokens.size(), i > 5 ? 0u : 1u);
    if (!greedy.noop) {
      EXPECT_EQ(greedy.length, 10 + i - 1);
      EXPECT_EQ(greedy.tokens[0].top.size(), 3u);
    }
  }
}

TEST_P(ExecutorContract, SameAnswersInEveryEpoch) {
  ExecutorSession session(GetParam());
  const Epoch first = session.Start();
  const auto before = Answers(session.RunSteps(Script(first), 1, kSteps));
  PlanBuilder wrong(first);  // step 1 again
  ASSERT_TRUE(session.executor().Execute(wrong.Take()).ok());
  const Epoch second = session.recorder.WaitReady(2);
  EXPECT_EQ(Answers(session.RunSteps(Script(second), 1, kSteps)), before);
}

TEST_P(ExecutorContract, LagPlusOnePlansMayWait) {
  absl::Notification release;
  ExecutorSession session(GetParam());
  // Nothing runs while the executor is kept inside OnReady.
  session.recorder.on_ready = [&] { release.WaitForNotificationWithTimeout(absl::Minutes(1)); };
  const Epoch epoch = session.Start();
  const std::vector<StepPlan> script = Script(epoch);
  const std::uint32_t room = session.recorder.description().lag + 1;
  ASSERT_LT(room, kSteps);
  for (std::uint32_t i = 0; i < room; ++i) {
    EXPECT_TRUE(session.executor().Execute(script[i]).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(session.executor().Execute(script[room])));
  release.Notify();
  session.recorder.WaitResult(room);
  // The refused plan had no effect, so its step is still the next one.
  session.RunSteps(script, room + 1, kSteps);
}

TEST_P(ExecutorContract, PlansOfOtherEpochsAreRefused) {
  ExecutorSession session(GetParam());
  const Epoch epoch = session.Start();
  for (const Epoch other : {Epoch(0), Epoch(epoch.value() + 1), Epoch(~0ull)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(session.executor().Execute(Script(other)[0])));
  }
  session.RunSteps(Script(epoch), 1, kSteps);  // unharmed
}

// A plan that cannot be applied ends the epoch at any point. All results before it arrive and none
// after it. Then a new epoch begins.
TEST_P(ExecutorContract, WrongPlansEndTheEpochAtEveryPoint) {
  ExecutorSession session(GetParam());
  Epoch epoch = session.Start();
  std::size_t losses = 0, results = 0;
  enum class Fault { kDigest, kGap, kRepeat, kInvalid };
  for (const Fault fault : {Fault::kDigest, Fault::kGap, Fault::kRepeat, Fault::kInvalid}) {
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      const std::vector<StepPlan> script = Script(epoch);
      session.RunSteps(script, 1, step - 1);
      StepPlan plan = script[step - 1];
      if (fault == Fault::kDigest) ++plan.digest;
      if (fault == Fault::kGap) plan.step = Step(step + 1);
      if (fault == Fault::kRepeat) plan.step = Step(step - 1);
      if (fault == Fault::kInvalid) plan.ops.push_back(DropSequence{SequenceHandle(3)});
      EXPECT_TRUE(session.executor().Execute(plan).ok());
      const Lost lost = session.recorder.WaitLost(++losses);
      EXPECT_EQ(lost.epoch, epoch);
      EXPECT_EQ(lost.cause,
                fault == Fault::kDigest ? Lost::Cause::kDigest : Lost::Cause::kInvalidPlan);
      EXPECT_TRUE(lost.started.empty());
      EXPECT_TRUE(absl::IsFailedPrecondition(session.executor().Execute(script[step - 1])));
      results += step - 1;
      epoch = session.recorder.WaitReady(losses + 1);
    }
  }
  EXPECT_EQ(session.recorder.result_count(), results);
}

TEST_P(ExecutorContract, QueuedPlansDieWithTheirEpoch) {
  ExecutorSession session(GetParam());
  const Epoch epoch = session.Start();
  const std::vector<StepPlan> script = Script(epoch);
  StepPlan wrong = script[0];
  ++wrong.digest;
  EXPECT_TRUE(session.executor().Execute(wrong).ok());
  const absl::Status behind = session.executor().Execute(script[1]);  // may come too late
  EXPECT_TRUE(behind.ok() || absl::IsFailedPrecondition(behind)) << behind;
  EXPECT_EQ(session.recorder.WaitLost(1).epoch, epoch);
  // The new epoch starts at step 1 with empty sequences and an empty queue.
  session.RunSteps(Script(session.recorder.WaitReady(2)), 1, kSteps);
  EXPECT_EQ(session.recorder.result_count(), kSteps);
}

// EndEpoch works at any point. A new epoch begins, and no more plans of the old epoch run.
TEST_P(ExecutorContract, EndEpochStartsAFreshOne) {
  ExecutorSession session(GetParam());
  Epoch epoch = session.Start();
  for (std::uint64_t step = 0; step <= kSteps; ++step) {
    const std::vector<StepPlan> script = Script(epoch);
    session.RunSteps(script, 1, step);
    session.executor().EndEpoch(Epoch(epoch.value() + 1));  // not the current one
    if (step < kSteps) {
      EXPECT_TRUE(session.executor().Execute(script[step]).ok());  // may yet be answered
    }
    session.executor().EndEpoch(epoch);
    session.executor().EndEpoch(epoch);
    const Lost lost = session.recorder.WaitLost(step + 1);
    EXPECT_EQ(lost.epoch, epoch);
    EXPECT_EQ(lost.cause, Lost::Cause::kDigest);
    EXPECT_TRUE(absl::IsFailedPrecondition(session.executor().Execute(script[0])));
    epoch = session.recorder.WaitReady(step + 2);
  }
  session.RunSteps(Script(epoch), 1, kSteps);
}

TEST_P(ExecutorDeathContract, ResultsBeforeNoneAfterThenAFreshEpoch) {
  for (std::uint64_t step = 0; step <= kSteps; ++step) {
    for (const bool during : {true, false}) {
      if (step == 0 && during) continue;
      ExecutorSession session(GetParam());
      const auto& lose = during ? session.made().lose_during : session.made().lose_after;
      lose(Step(step));
      const Epoch epoch = session.Start();
      const std::vector<StepPlan> script = Script(epoch);
      const std::uint64_t answered = during ? step - 1 : step;
      session.RunSteps(script, 1, answered);
      if (during) {
        EXPECT_TRUE(session.executor().Execute(script[step - 1]).ok());
      }
      const Lost lost = session.recorder.WaitLost(1);
      EXPECT_EQ(lost.epoch, epoch);
      EXPECT_EQ(lost.cause, Lost::Cause::kDied);
      EXPECT_EQ(lost.started, during ? std::vector<Step>{Step(step)} : std::vector<Step>{});
      const Epoch next = session.recorder.WaitReady(2);
      EXPECT_TRUE(absl::IsFailedPrecondition(session.executor().Execute(script[0])));
      session.RunSteps(Script(next), 1, kSteps);
      EXPECT_EQ(session.recorder.result_count(), answered + kSteps);
    }
  }
}

TEST_P(ExecutorContract, NothingHappensAfterStop) {
  for (std::uint64_t plans = 0; plans <= 2; ++plans) {
    ExecutorSession session(GetParam());
    const Epoch epoch = session.Start();
    const std::vector<StepPlan> script = Script(epoch);
    for (std::uint64_t i = 0; i < plans; ++i) {
      EXPECT_TRUE(session.executor().Execute(script[i]).ok());
    }
    session.executor().Stop();
    const std::size_t events = session.recorder.event_count();
    EXPECT_TRUE(absl::IsFailedPrecondition(session.executor().Execute(script[plans])));
    session.executor().Stop();
    EXPECT_EQ(session.recorder.event_count(), events);
  }
}

TEST_P(ExecutorContract, StopsWithoutStart) {
  ExecutorSession session(GetParam());
  session.executor().Stop();
  EXPECT_EQ(session.recorder.event_count(), 0u);
}

}  // namespace
}  // namespace flotilla::testing
