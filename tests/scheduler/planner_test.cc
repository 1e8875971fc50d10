// Tests what plans contain and which events the core emits: budgets, bounds, stalls, preemption,
// ends, refusals.

#include <gtest/gtest.h>

#include <set>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

using PlanRun = flotilla::Run;  // ::testing::Test has a Run of its own

ExecutorDescription PlannerGroup() { return testing::FakeExecutorOptions::DefaultDescription(); }

ExecutorDescription SmallGroup(std::uint32_t blocks, std::uint32_t block_tokens) {
  ExecutorDescription group = PlannerGroup();
  group.block_count = blocks + 1;
  group.groups[0].tokens_per_block = block_tokens;
  return group;
}

TEST(Planner, EveryDecodeRunsInEveryStepOfALongPrefill) {
  CoreHarness harness({}, PlannerGroup());
  for (std::uint64_t id = 1; id <= 8; ++id) harness.Submit(id, 5, 200);
  while (harness.TokensOf(8) == 0) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  harness.Submit(100, 6000, 5);
  int mixed_steps = 0;
  while (harness.TokensOf(100) == 0) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    const bool prefills = !CoreHarness::OpsOf<PlanRun>(harness.plans.back()).empty();
    if (harness.plans.size() < 2) continue;  // keep one ahead, as an engine does
    const StepResult result = harness.Answer();
    if (!prefills || result.timings.rows <= 8) continue;
    ++mixed_steps;
    EXPECT_EQ(result.timings.decode_rows, 8u);
    EXPECT_LE(result.timings.rows, 256u);
  }
  EXPECT_GE(mixed_steps, 6000 / 248);
}

TEST(Planner, ChunksKeepWithinBothBudgets) {
  CoreHarness harness({.max_step_tokens = 100, .max_chunk_tokens = 30}, PlannerGroup());
  harness.Submit(1, 90, 4);
  harness.Submit(2, 90, 4);
  harness.Submit(3, 90, 4);
  harness.Submit(4, 90, 4);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  std::vector<std::uint32_t> counts;
  for (const PlanRun& run : CoreHarness::OpsOf<PlanRun>(harness.plans.back())) {
    counts.push_back(run.count);
  }
  EXPECT_EQ(counts, (std::vector<std::uint32_t>{30, 30, 30, 10}));
  harness.Answer();
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(harness.TokensOf(id), 4u);
}

TEST(Planner, AtMostLagPlusOnePlansAreUnanswered) {
  for (std::uint32_t lag = 1; lag <= 3; ++lag) {
    ExecutorDescription group = PlannerGroup();
    group.lag = lag;
    CoreHarness harness({}, group);
    harness.Submit(1, 4, 50);
    for (std::uint32_t i = 0; i <= lag; ++i) EXPECT_EQ(harness.Plan(), StallReason::kNone);
    EXPECT_EQ(harness.Plan(), StallReason::kPipelineFull);
    for (std::uint32_t i = 0; i <= lag; ++i) harness.Answer();
    harness.RunAll();
    EXPECT_EQ(harness.TokensOf(1), 50u);
  }
}

TEST(Planner, MicroBatchesShareTheSequencesEvenly) {
  ExecutorDescription group = PlannerGroup();
  group.lag = 3;
  CoreHarness harness({}, group);
  for (std::uint64_t id = 1; id <= 9; ++id) harness.Submit(id, 3, 20);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  std::multiset<std::uint32_t> micro_batches;
  for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
    micro_batches.insert(open.micro_batch);
  }
  for (std::uint32_t c = 0; c < 3; ++c) EXPECT_EQ(micro_batches.count(c), 3u);
}

TEST(Planner, ADecodeStepNamesNoSequenceThatNeedsNothing) {
  CoreHarness harness({}, PlannerGroup());
  harness.Submit(1, 4, 11);  // 14 positions: one block of 16
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  harness.Answer();
  for (int step = 0; step < 10; ++step) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    EXPECT_TRUE(harness.plans.back().ops.empty());
    harness.Answer();
  }
  EXPECT_EQ(harness.ReasonOf(1), FinishReason::kLength);
}

TEST(Planner, NoPlanIsMadeForASequenceThatHasSurelyFinished) {
  CoreHarness harness({}, PlannerGroup());
  harness.Submit(1, 4, 2);
  EXPECT_EQ(harness.Plan(), StallReason::kNone);  // prefill, token 0
  EXPECT_EQ(harness.Plan(), StallReason::kNone);  // token 1, the last
  harness.Answer();
  EXPECT_EQ(harness.Plan(), StallReason::kResults);
  harness.Answer();
  EXPECT_EQ(harness.ReasonOf(1), FinishReason::kLength);
  EXPECT_EQ(harness.Plan(), StallReason::kNone);  // the drop
  EXPECT_EQ(CoreHarness::OpsOf<DropSequence>(harness.plans.back()).size(), 1u);
  harness.Answer();
  EXPECT_EQ(harness.Plan(), StallReason::kIdle);
}

// Two sequences of 4 blocks each run in a pool of 5. The second is deferred, then waits for the
// results, then is preempted. Both finish with their own tokens.
TEST(Planner, AShortageDefersThenStallsThenPreemptsTheLast) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0}, SmallGroup(5, 2));
  harness.Submit(1, 2, 7);
  harness.Submit(2, 2, 7);
  bool deferred = false, stalled = false;
  for (int step = 0; step < 8 && !stalled; ++step) {
    const StallReason stall = harness.Plan();
    stalled = stall == StallReason::kMemory;
    if (stall != StallReason::kNone) break;
    const auto deferrals = CoreHarness::OpsOf<Defer>(harness.plans.back());
    if (!deferrals.empty()) {
      deferred = true;
      EXPECT_EQ(harness.core.OpenSequences()[deferrals[0].sequence.value()].request.counter, 2u);
    }
    if (harness.plans.size() > 1) harness.Answer();
  }
  EXPECT_TRUE(deferred);
  EXPECT_TRUE(stalled);
  EXPECT_EQ(harness.core.Snapshot().counters.preemptions, 0u);  // results are outstanding
  while (!harness.plans.empty()) harness.Answer();
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  EXPECT_EQ(harness.core.Snapshot().counters.preemptions, 1u);
  EXPECT_EQ(harness.core.OpenSequences().size(), 1u);
  EXPECT_EQ(harness.core.OpenSequences()[0].request.counter, 1u);
  harness.Answer();
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 2; ++id) {
    EXPECT_EQ(harness.TokensOf(id), 7u);
    EXPECT_EQ(harness.EndOf(id)->usage.preemptions, id - 1);
    EXPECT_EQ(harness.EndOf(id)->usage.decode_preemptions, id - 1);
  }
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
}

TEST(Planner, HigherPriorityIsAdmittedFirst) {
  CoreHarness harness({.max_seqs = 1}, PlannerGroup());
  harness.Submit(1, 3, 2);
  TokenizedRequest urgent = CoreHarness::Request(2, 3, 2);
  urgent.priority = 1;
  harness.core.Submit(0, urgent);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  EXPECT_EQ(CoreHarness::OpsOf<OpenSequence>(harness.plans.back())[0].request.counter, 2u);
}

TEST(Planner, APromptWaitsUntilItFitsBesideTheWatermark) {
  CoreHarness harness({.watermark_blocks = 1, .expected_output_permille = 0}, SmallGroup(6, 4));
  harness.Submit(1, 7, 8);  // 2 blocks, in the next step too
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  harness.Submit(2, 16, 1);  // 4 blocks; 4 are free but one is kept for sequence 1
  harness.Answer();
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  EXPECT_TRUE(CoreHarness::OpsOf<OpenSequence>(harness.plans.back()).empty());
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(2), 1u);
  EXPECT_EQ(harness.core.Snapshot().counters.preemptions, 0u);
}

// Later requests with a higher priority take the blocks of the first request as often as they may.
// Then they wait for it. Before its last preemption its blocks are reserved, and it needs no more
// of them than expected, so the last one does not happen.
TEST(Planner, ARequestIsPreemptedAsOftenAsItMayBe) {
  for (const auto& [most, expected] : {std::pair(1u, 1u), {2u, 1u}, {3u, 2u}, {4u, 3u}}) {
    SCOPED_TRACE(most);
    CoreHarness harness({.watermark_blocks = 0,
                         .expected_output_permille = 0,
                         .max_preemptions = most,
                         .prefix_cache = false},
                        SmallGroup(7, 4));
    harness.Submit(1, 4, 22);  // seven blocks in the end
    std::uint64_t id = 2;
    while (harness.core.Snapshot().counters.preemptions < expected) {
      TokenizedRequest urgent = CoreHarness::Request(id, 4, 12);
      urgent.priority = 1;
      harness.core.Submit(0, urgent);
      for (int step = 0; step < 9 && harness.Plan() == StallReason::kNone; ++step) harness.Answer();
      ASSERT_LT(++id, 100u);
    }
    TokenizedRequest urgent = CoreHarness::Request(id, 4, 12);
    urgent.priority = 1;
    harness.core.Submit(0, urgent);
    harness.RunAll();
    EXPECT_EQ(harness.EndOf(1)->usage.preemptions, expected);
    EXPECT_EQ(harness.TokensOf(1), 22u);
    for (std::uint64_t other = 2; other <= id; ++other) EXPECT_EQ(harness.TokensOf(other), 12u);
    EXPECT_EQ(harness.core.Snapshot().counters.preemptions, expected);
  }
}

TEST(Planner, AHeadTooLargeForNowIsPassedByAFewOnly) {
  CoreHarness harness(
      {.watermark_blocks = 0, .expected_output_permille = 0, .max_overtaken_rows = 6},
      SmallGroup(10, 4));
  harness.Submit(1, 20, 20);  // five blocks, and running
  harness.Plan();
  harness.Answer();
  harness.Submit(2, 36, 4);  // nine: waits
  for (std::uint64_t id = 3; id < 8; ++id) harness.Submit(id, 3, 2);
  harness.Plan();
  EXPECT_EQ(harness.core.Snapshot().load.running_requests, 3u);
  EXPECT_EQ(harness.core.Snapshot().counters.bypasses, 2u);
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.core.Snapshot().counters.bypasses, 2u);
  EXPECT_EQ(harness.TokensOf(2), 4u);
}

// Admission leaves room for the expected output of the running requests. The share is learned from
// requests that end.
TEST(Planner, AdmissionLeavesRoomForWhatRequestsUse) {
  CoreHarness harness({.expected_output_permille = 1000, .prefix_cache = false}, SmallGroup(40, 4));
  harness.Submit(1, 4, 90);  // 24 blocks if it makes all that it may
  harness.Submit(2, 4, 90);
  harness.Plan();
  EXPECT_EQ(harness.core.Snapshot().load.running_requests, 1u);
  harness.Answer();
  harness.core.Cancel({.request = {1, 1}});
  harness.core.Cancel({.request = {1, 2}});
  for (std::uint64_t id = 10; id < 60; ++id) {  // stop at their second token
    TokenizedRequest request = CoreHarness::Request(id, 4, 90);
    request.stop.stop_tokens = {testing::FakeToken(id, SequenceIndex(0), 1, 1000)};
    harness.core.Submit(0, request);
    harness.RunAll();
  }
  for (std::uint64_t id = 100; id < 104; ++id) harness.Submit(id, 4, 90);
  harness.Plan();
  EXPECT_EQ(harness.core.Snapshot().load.running_requests, 4u);
  harness.Answer();
  harness.RunAll();
  for (std::uint64_t id = 100; id < 104; ++id) EXPECT_EQ(harness.TokensOf(id), 90u);
}

TEST(Core, CancelFreesBlocksAtOnceAndDropsInTheNextPlan) {
  CoreHarness harness({}, PlannerGroup());
  harness.Submit(1, 40, 100);
  harness.Plan();
  harness.Answer();
  harness.Plan();  // its decode is in flight
  harness.core.Cancel({.request = {1, 1}, .sequence = {}, .keep_tokens = 9});
  harness.TakeEvents();
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
  EXPECT_EQ(harness.ReasonOf(1), FinishReason::kCancelled);
  EXPECT_EQ(harness.EndOf(1)->usage.output_tokens, 1u);  // never more than delivered
  const std::size_t events = harness.events[1].size();
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  EXPECT_EQ(CoreHarness::OpsOf<DropSequence>(harness.plans.back()).size(), 1u);
  harness.Answer();  // of the decode sent before the end: discarded
  harness.Answer();
  EXPECT_EQ(harness.events[1].size(), events);
  EXPECT_EQ(harness.Plan(), StallReason::kIdle);
}

TEST(Core, DeadlineEndsWaitingAndRunning) {
  CoreHarness harness({.max_seqs = 1}, PlannerGroup());
  for (std::uint64_t id = 1; id <= 2; ++id) {
    TokenizedRequest request = CoreHarness::Request(id, 4, 100);
    request.deadline_ns = 1000;
    harness.core.Submit(0, request);
  }
  PlanOutcome outcome = harness.core.Plan(0);
  EXPECT_EQ(outcome.wake_ns, 1000);
  harness.plans.push_back(*outcome.plan);
  harness.Answer();
  harness.now_ns = 1000;
  harness.Plan();
  for (std::uint64_t id = 1; id <= 2; ++id) {
    EXPECT_EQ(harness.ReasonOf(id), FinishReason::kDeadline);
    EXPECT_TRUE(absl::IsDeadlineExceeded(harness.EndOf(id)->status));
  }
  EXPECT_EQ(harness.core.live_requests(), 0u);
}

TEST(Core, LostGroupIsReplayedWithNoTokenTwice) {
  CoreHarness harness({}, PlannerGroup());
  TokenizedRequest request = CoreHarness::Request(1, 30, 10);
  request.logprobs.prompt_top = 0;
  harness.core.Submit(0, request);
  for (int step = 0; step < 4; ++step) {
    harness.Plan();
    harness.Answer();
  }
  harness.Plan();
  harness.core.Lost(harness.epoch());
  EXPECT_EQ(harness.Plan(), StallReason::kNotReady);
  harness.Restart();
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  const auto open = CoreHarness::OpsOf<OpenSequence>(harness.plans.back());
  EXPECT_EQ(open.at(0).tokens.size(), 30u + 4u);
  EXPECT_EQ(open.at(0).prompt_tokens, 30u);
  EXPECT_FALSE(CoreHarness::OpsOf<PlanRun>(harness.plans.back()).at(0).prompt_logprobs);
  harness.Answer();
  harness.RunAll();
  std::uint32_t position = 0, logprobs = 0;
  for (const EngineEvent& event : harness.events[1]) {
    if (const auto* prompt = std::get_if<PromptLogprobs>(&event)) logprobs += prompt->tokens.size();
    const auto* token = std::get_if<TokenEvent>(&event);
    if (token == nullptr) continue;
    EXPECT_EQ(token->position, position);
    EXPECT_EQ(token->sampled.token, testing::FakeToken(1, SequenceIndex(0), position++, 1000));
  }
  EXPECT_EQ(position, 10u);
  EXPECT_EQ(logprobs, 29u);
}

TEST(Core, OutputPrefixContinuesAtItsPosition) {
  CoreHarness harness({}, PlannerGroup());
  TokenizedRequest request = CoreHarness::Request(1, 5, 6);
  request.output_prefix = {{testing::FakeToken(1, SequenceIndex(0), 0, 1000)}};
  harness.core.Submit(0, request);
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 5u);
  EXPECT_EQ(std::get<TokenEvent>(harness.events[1][1]).position, 1u);
  EXPECT_EQ(harness.EndOf(1)->usage.output_tokens, 6u);
}

TEST(Core, MaxTokensZeroEndsAfterThePrompt) {
  CoreHarness harness({.max_chunk_tokens = 8}, PlannerGroup());
  TokenizedRequest request = CoreHarness::Request(1, 20, 0);
  request.logprobs.prompt_top = 3;
  harness.core.Submit(0, request);
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 0u);
  EXPECT_EQ(harness.ReasonOf(1), FinishReason::kLength);
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
}

TEST(Core, RefusesByName) {
  CoreHarness harness({.max_queued_requests = 2, .max_queued_tokens = 50}, SmallGroup(4, 16));
  std::uint64_t id = 1;
  const auto refusal = [&](auto change) {
    TokenizedRequest request = CoreHarness::Request(id, 10, 4);
    change(request);
    harness.core.Submit(0, request);
    harness.TakeEvents();
    EXPECT_EQ(harness.events[id].size(), 1u);
    return harness.EndOf(id++).value_or(RequestEnd{}).status;
  };
  using R = TokenizedRequest;
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.sequences = 0; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.sequences = 65; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.beam.emplace().beams = 1u << 31; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.beam.emplace().beams = 33; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) {
    r.beam.emplace().beams = 2;
    r.sequences = 3;
  })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) {
    r.beam.emplace();
    r.stop.max_tokens = 0;
  })));
  EXPECT_TRUE(
      absl::IsInvalidArgument(refusal([](R& r) { r.beam.emplace().length_penalty = NAN; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) {
    r.beam.emplace();
    r.output_prefix = {{1}};
  })));
  // At most three blocks are shared. With one more block for each sequence the request does not fit
  // the pool.
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) {
    r.sequences = 10;
    r.stop.max_tokens = 20;
  })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refusal([](R& r) { r.sampling.constraint.kind = Constraint::Kind::kRegex; })));
  EXPECT_TRUE(absl::IsUnimplemented(refusal([](R& r) { r.adapter = "lora"; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.prompt.clear(); })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.prompt[3] = 1000; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.prompt[3] = -1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.stop.max_tokens = UINT32_MAX; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.stop.max_tokens = 60; })));  // pool
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.prompt.resize(51); })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.stop.stop_tokens = {5, 5}; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.sampling.top_p = 0; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.sampling.temperature = -1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.logprobs.output_top = 21; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal([](R& r) { r.output_prefix = {{1}, {2}}; })));
  EXPECT_TRUE(absl::IsDeadlineExceeded(refusal([](R& r) { r.deadline_ns = 0; })));
  harness.Submit(100, 45, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(refusal([](R&) {})));  // 45 + 10 tokens
  EXPECT_GT(harness.EndOf(id - 1)->retry_after_ms, 0);
  harness.Submit(101, 1, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(refusal([](R& r) { r.prompt.resize(1); })));
  harness.Submit(101, 1, 1);
  EXPECT_TRUE(absl::IsAlreadyExists(harness.EndOf(101)->status));
  harness.core.Drain();
  EXPECT_TRUE(absl::IsUnavailable(refusal([](R&) {})));
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(100), 1u);
}

// A replay was admitted once, so neither a full queue nor a drain refuses it. Its parameters are
// still checked.
TEST(Core, AReplayPassesAdmission) {
  CoreHarness harness({.max_queued_requests = 1, .max_queued_tokens = 20, .max_wait_ns = 1},
                      SmallGroup(4, 16));
  harness.Submit(1, 10, 4);
  TokenizedRequest replay = CoreHarness::Request(2, 12, 4);
  replay.attempt = Attempt(1);
  replay.output_prefix = {{5}};
  harness.core.Submit(0, replay);
  harness.core.Drain();
  replay.id.counter = 3;
  harness.core.Submit(0, replay);
  replay.id.counter = 4;
  replay.output_prefix = {{5}, {6}};
  harness.core.Submit(0, replay);
  harness.RunAll();
  for (const std::uint64_t id : {1, 2, 3}) {
    EXPECT_EQ(harness.ReasonOf(id), FinishReason::kLength) << id;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(harness.EndOf(4)->status));
}

TEST(Core, AResultThatDoesNotAnswerThePlanIsAnError) {
  const auto applied = [](auto change) {
    CoreHarness harness({}, PlannerGroup());
    harness.Submit(1, 4, 10);
    harness.Plan();
    StepResult result{.epoch = harness.epoch(), .step = Step(1)};
    result.sequences.push_back(
        {.sequence = SequenceHandle(0), .length = 4, .tokens = {{.token = 7}}});
    change(result);
    return harness.core.Apply(result);
  };
  EXPECT_TRUE(applied([](StepResult&) {}).ok());
  EXPECT_TRUE(applied([](StepResult& r) {
                r.epoch = Epoch(0);
                r.step = Step(9);
              }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.step = Step(2); }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.sequences.clear(); }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.sequences[0].sequence = SequenceHandle(63); }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.sequences[0].length = 5; }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.sequences[0].tokens.clear(); }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.sequences[0].tokens[0].token = 1000; }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.sequences[0].first_output = 1; }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.sequences[0].noop = true; }).ok());
  EXPECT_FALSE(applied([](StepResult& r) { r.sequences[0].finished = FinishReason::kMoved; }).ok());
}

// A plan is a message: who shares a long prefix opens in several plans.
TEST(Planner, OpenedTokensOfAPlanAreBounded) {
  CoreHarness harness({.max_opened_tokens = 150}, PlannerGroup());
  for (std::uint64_t id = 1; id <= 6; ++id) harness.Submit(id, 60, 4);
  harness.Submit(7, 200, 4);  // more than the bound, so it opens alone
  std::size_t opened = 0, plans = 0;
  while (harness.core.live_requests() > 0) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    std::size_t count = 0, tokens = 0;
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      ++count;
      tokens += open.tokens.size();
    }
    EXPECT_TRUE(count <= 1 || tokens <= 150) << count << " with " << tokens;
    opened += count;
    plans += count > 0;
    harness.Answer();
  }
  EXPECT_EQ(opened, 7u);
  EXPECT_EQ(plans, 4u);
}

}  // namespace
}  // namespace flotilla::scheduler
