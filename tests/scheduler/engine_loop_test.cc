// Tests InProcessEngine over a FakeExecutor: threads, sinks, refusals and the end. Rounds run on
// the loop's thread alone, or also on the threads of senders.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "scheduler/server/engine_loop.h"
#include "tests/support/fake_executor.h"
#include "tests/support/requests.h"

namespace flotilla::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An event that happens once. Other threads can wait for it.
class Signal {
 public:
  void Set() {
    absl::MutexLock lock(&mu_);
    set_ = true;
  }
  void Await() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&set_));
  }

 private:
  absl::Mutex mu_;
  bool set_ = false;
};

// Collects events; tests wait for what they need.
class Collector final : public EventSink {
 public:
  void Post(std::vector<EngineEvent> events) override {
    absl::MutexLock lock(&mu_);
    ++batches_;
    for (EngineEvent& event : events) {
      const std::uint64_t id = EventKey(event).first.counter;
      ended_ += std::holds_alternative<RequestEnd>(event);
      tokens_ += std::holds_alternative<TokenEvent>(event);
      events_[id].push_back(std::move(event));
    }
  }
  void AwaitEnds(std::size_t count) {
    absl::MutexLock lock(&mu_);
    const auto done = [&] { return ended_ >= count; };
    mu_.Await(absl::Condition(&done));
  }
  void AwaitTokens(std::size_t count) {
    absl::MutexLock lock(&mu_);
    const auto done = [&] { return tokens_ >= count; };
    mu_.Await(absl::Condition(&done));
  }
  std::vector<EngineEvent> Of(std::uint64_t id) {
    absl::MutexLock lock(&mu_);
    return events_[id];
  }
  RequestEnd EndOf(std::uint64_t id) { return std::get<RequestEnd>(Of(id).back()); }
  std::size_t ends() {
    absl::MutexLock lock(&mu_);
    return ended_;
  }
  std::size_t tokens() {
    absl::MutexLock lock(&mu_);
    return tokens_;
  }
  std::size_t batches() {
    absl::MutexLock lock(&mu_);
    return batches_;
  }

 private:
  absl::Mutex mu_;
  std::size_t ended_ = 0, tokens_ = 0, batches_ = 0;
  std::map<std::uint64_t, std::vector<EngineEvent>> events_;
};

TokenizedRequest Request(std::uint64_t id, std::uint32_t prompt, std::uint32_t max_tokens) {
  return testing::TestRequest({1, id}, testing::CountingPrompt(id, prompt, 1000, /*step=*/0),
                              max_tokens);
}

// Expects each token once, in order, with the right value. Then SequenceEnd and RequestEnd follow.
void ExpectWholeAnswer(const std::vector<EngineEvent>& events, std::uint64_t id,
                       std::uint32_t tokens) {
  ASSERT_EQ(events.size(), tokens + 3u);
  EXPECT_TRUE(std::holds_alternative<Accepted>(events[0]));
  for (std::uint32_t i = 0; i < tokens; ++i) {
    const auto& token = std::get<TokenEvent>(events[i + 1]);
    EXPECT_EQ(token.position, i);
    EXPECT_EQ(token.sampled.token, testing::FakeToken(id, SequenceIndex(0), i, 1000));
  }
  EXPECT_EQ(std::get<SequenceEnd>(events[tokens + 1]).reason, FinishReason::kLength);
  EXPECT_TRUE(std::get<RequestEnd>(events[tokens + 2]).status.ok());
}

// GetParam is InProcessEngineOptions::rounds_on_senders.
class EngineLoopTest : public ::testing::TestWithParam<bool> {
 protected:
  ~EngineLoopTest() override {
    if (engine) engine->Stop();
  }
  void Start(InProcessEngineOptions options = {}, testing::FakeExecutorOptions fake = {}) {
    options.rounds_on_senders = GetParam();
    executor = std::make_unique<testing::FakeExecutor>(fake);
    engine = std::make_unique<InProcessEngine>(std::move(options), executor.get(), &clock);
    ASSERT_TRUE(engine->Start().ok());
    if (fake.manual) return;
    ASSERT_TRUE(engine->WaitReady().ok());
  }

  // Advances the executor, which is in manual mode, while `condition` holds.
  template <class Condition>
  void AdvanceWhile(const Condition& condition) {
    while (condition()) {
      if (!executor->Advance()) std::this_thread::yield();
    }
  }

  SteadyClock clock;
  std::unique_ptr<testing::FakeExecutor> executor;
  std::unique_ptr<InProcessEngine> engine;
  std::shared_ptr<Collector> sink = std::make_shared<Collector>();
};

TEST_P(EngineLoopTest, ServesManyRequestsAndEndsWithNoBlockUsed) {
  Start();
  for (std::uint64_t id = 1; id <= 200; ++id) engine->Submit(Request(id, 1 + id % 90, 40), sink);
  sink->AwaitEnds(200);
  for (std::uint64_t id = 1; id <= 200; ++id) ExpectWholeAnswer(sink->Of(id), id, 40);
  Signal drained;
  engine->Drain([&] { drained.Set(); });
  drained.Await();
  const EngineLoad load = engine->Load();
  EXPECT_EQ(load.blocks_used, 0u);
  EXPECT_EQ(load.outstanding_tokens, 0u);
  EXPECT_TRUE(load.draining);
  EXPECT_GE(engine->probe().Read().core.counters.output_tokens, 200u * 40);
}

TEST_P(EngineLoopTest, StepsAreInItsMetrics) {
  Metrics metrics;
  Start({.metrics = &metrics});
  engine->Submit(Request(1, 8, 30), sink);
  sink->AwaitEnds(1);
  const std::string page = metrics.Render();
  EXPECT_THAT(page,
              HasSubstr("flotilla_scheduler_step_duration_seconds_count{phase=\"decode\"} 29"));
  EXPECT_THAT(page, HasSubstr("flotilla_scheduler_step_tokens_sum{kind=\"prefill\"} 8\n"));
  EXPECT_THAT(page, HasSubstr("flotilla_scheduler_group_ready 1\n"));
}

TEST_P(EngineLoopTest, EachSinkGetsOneBatchPerStep) {
  Start();
  std::vector<std::shared_ptr<Collector>> sinks = {sink, std::make_shared<Collector>()};
  for (std::uint64_t id = 1; id <= 20; ++id) engine->Submit(Request(id, 4, 30), sinks[id % 2]);
  for (const auto& s : sinks) s->AwaitEnds(10);
  const std::uint64_t rounds = engine->probe().Read().steps + 20 + 2;  // results, arrivals
  for (const auto& s : sinks) EXPECT_LE(s->batches(), rounds);
}

TEST_P(EngineLoopTest, DecodesGetATokenInEveryStepOfALongPrefill) {
  testing::FakeExecutorOptions fake;
  fake.manual = true;  // otherwise requests 1 to 8 could end before request 9 comes
  Start({.core = {.itl_permille = 0}}, fake);  // chunks do not depend on measured time
  executor->AdvanceAll();                      // Ready
  ASSERT_TRUE(engine->WaitReady().ok());
  for (std::uint64_t id = 1; id <= 8; ++id) engine->Submit(Request(id, 5, 8000), sink);
  AdvanceWhile([&] { return sink->tokens() < 8 * 3; });
  const auto count = [&](std::uint64_t id) { return sink->Of(id).size(); };
  std::map<std::uint64_t, std::size_t> before;
  for (std::uint64_t id = 1; id <= 8; ++id) before[id] = count(id);
  const std::uint64_t steps_before = engine->probe().Read().steps;
  auto long_sink = std::make_shared<Collector>();
  engine->Submit(Request(9, 6000, 2), long_sink);
  AdvanceWhile([&] { return long_sink->tokens() < 1; });
  const std::uint64_t steps = engine->probe().Read().steps - steps_before;
  // One step has 256 rows, 8 of them decodes. Up to two steps more are under way on either side,
  // and some may be done before the threads of a busy machine take the request or see its token.
  EXPECT_GE(steps, (6000 + 247) / 248u);
  EXPECT_LE(steps, (6000 + 247) / 248u + 8);
  for (std::uint64_t id = 1; id <= 8; ++id) EXPECT_GE(count(id) - before[id] + 2, steps) << id;
  for (std::uint64_t id = 1; id <= 8; ++id) engine->Cancel({.request = {1, id}});
  AdvanceWhile([&] { return sink->ends() < 8; });
}

TEST_P(EngineLoopTest, CancelEndsAStream) {
  Start();
  engine->Submit(Request(1, 4, 8000), sink);
  sink->AwaitTokens(10);
  engine->Cancel({.request = {1, 1}, .sequence = SequenceIndex(0), .keep_tokens = 7});
  engine->Cancel({.request = {1, 99}});  // the request is unknown, so nothing happens
  sink->AwaitEnds(1);
  const std::vector<EngineEvent> events = sink->Of(1);
  const auto& end = std::get<SequenceEnd>(events[events.size() - 2]);
  EXPECT_EQ(end.reason, FinishReason::kCancelled);
  EXPECT_EQ(end.output_tokens, 7u);
  EXPECT_TRUE(sink->EndOf(1).status.ok());
}

TEST_P(EngineLoopTest, DeadlineWakesAnEngineThatHasNothingElseToDo) {
  Start();
  executor->Pause();
  TokenizedRequest request = Request(1, 4, 8);
  request.deadline_ns = clock.NowNs() + 20'000'000;
  engine->Submit(request, sink);
  sink->AwaitEnds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(sink->EndOf(1).status));
  EXPECT_GE(clock.NowNs(), *request.deadline_ns);
  executor->Resume();
}

TEST_P(EngineLoopTest, LostGroupsAreAPauseAndNoTokenComesTwice) {
  Start();
  // This makes one loss certain, because each LoseNow may come after the last request has ended.
  executor->LoseAfter(Step(100));
  for (std::uint64_t id = 1; id <= 10; ++id) engine->Submit(Request(id, 50, 300), sink);
  for (int loss = 1; loss <= 5; ++loss) {
    sink->AwaitTokens(static_cast<std::size_t>(loss) * 400);
    executor->LoseNow();
  }
  sink->AwaitEnds(10);
  for (std::uint64_t id = 1; id <= 10; ++id) ExpectWholeAnswer(sink->Of(id), id, 300);
  engine->Stop();  // after this the engine has received every loss
  EXPECT_GE(engine->probe().Read().groups_lost, 1u);
}

// A worker that is killed from outside or stops on purpose costs a pause and nothing else.
TEST_P(EngineLoopTest, ALossThatBlamesNobodyQuarantinesNobody) {
  for (const bool blames : {false, true}) {
    InProcessEngineOptions options;
    std::vector<bool> lost;
    options.on_lost = [&](const flotilla::Lost& one) { lost.push_back(one.blames_requests); };
    testing::FakeExecutor fake;
    InProcessEngine one(options, &fake, &clock);
    auto answers = std::make_shared<Collector>();
    fake.LoseDuring(Step(5), blames);
    ASSERT_TRUE(one.Start().ok());
    ASSERT_TRUE(one.WaitReady().ok());
    for (std::uint64_t id = 1; id <= 3; ++id) one.Submit(Request(id, 4, 60), answers);
    answers->AwaitEnds(3);
    for (std::uint64_t id = 1; id <= 3; ++id) ExpectWholeAnswer(answers->Of(id), id, 60);
    one.Stop();
    EXPECT_EQ(one.probe().Read().core.counters.quarantines > 0, blames);
    EXPECT_EQ(lost, std::vector<bool>{blames});
  }
}

TEST_P(EngineLoopTest, DigestMismatchIsRecoveredLikeALoss) {
  testing::FakeExecutorOptions fake;
  Start({}, fake);
  engine->Submit(Request(1, 50, 3), sink);
  executor->CorruptDigest(Step(12));
  engine->Submit(Request(2, 50, 60), sink);
  sink->AwaitEnds(2);
  ExpectWholeAnswer(sink->Of(2), 2, 60);
}

TEST_P(EngineLoopTest, ARequestWhoseOperationsAreRefusedFailsAloneAndOthersAreServed) {
  for (const auto& [cause, words] :
       {std::pair{flotilla::Lost::Cause::kInvalidPlan, "an operation is refused"},
        std::pair{flotilla::Lost::Cause::kDigest, "digests differ"}}) {
    SCOPED_TRACE(words);
    Start();
    sink = std::make_shared<Collector>();
    executor->RefuseRequest({1, 3}, cause);
    for (std::uint64_t id = 1; id <= 8; ++id) engine->Submit(Request(id, 4, 20), sink);
    sink->AwaitEnds(8);
    for (std::uint64_t id = 1; id <= 8; ++id) {
      if (id != 3) ExpectWholeAnswer(sink->Of(id), id, 20);
    }
    EXPECT_TRUE(absl::IsInternal(sink->EndOf(3).status)) << sink->EndOf(3).status;
    EXPECT_THAT(sink->EndOf(3).status.message(), HasSubstr(words));
    engine.reset();  // before its executor
  }
}

TEST_P(EngineLoopTest, AQueueThatCannotTakeALegalPromptIsRefusedAtTheStart) {
  InProcessEngineOptions options;
  options.core.max_queued_tokens = 8191;
  std::atomic<int> unusable = 0;
  options.on_unusable = [&] { ++unusable; };
  testing::FakeExecutor fake;
  InProcessEngine refused(options, &fake, &clock);
  ASSERT_TRUE(refused.Start().ok());
  const absl::Status status = refused.WaitReady();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("--queue-tokens is 8191"));
  EXPECT_THAT(status.message(), HasSubstr("a prompt may have 8192 tokens"));
  refused.Stop();
  EXPECT_EQ(unusable, 1);
}

TEST_P(EngineLoopTest, WithoutANumberTheQueueTakesTheLongestPrompt) {
  InProcessEngineOptions options;
  options.core.max_queued_tokens = 0;
  testing::FakeExecutorOptions fake;
  fake.description.max_context = 131072;
  fake.description.block_count = 10000;
  Start(options, fake);
  EXPECT_EQ(engine->Describe()->max_queue_tokens, 131072u);
  engine.reset();  // before its executor
  fake.description.max_context = 8192;
  Start(options, fake);
  EXPECT_EQ(engine->Describe()->max_queue_tokens, 65536u);
}

// A clock that one thread moves while others read it.
class MovedClock final : public Clock {
 public:
  std::int64_t NowNs() const override { return now_ns; }
  std::atomic<std::int64_t> now_ns{1};
};

// Deadlines are timed by the engine's clock alone: real time passes while this clock stands.
TEST_P(EngineLoopTest, ADeadlinePassesByTheClockOfTheEngine) {
  MovedClock stopped;
  InProcessEngineOptions options;
  options.rounds_on_senders = GetParam();
  testing::FakeExecutor fake;
  InProcessEngine timed(options, &fake, &stopped);
  ASSERT_TRUE(timed.Start().ok());
  ASSERT_TRUE(timed.WaitReady().ok());
  fake.Pause();
  TokenizedRequest late = Request(1, 4, 20);
  late.deadline_ns = stopped.NowNs() + 2'000'000;
  timed.Submit(late, sink);
  const std::int64_t begun_ns = clock.NowNs();
  while (clock.NowNs() - begun_ns < 10'000'000) std::this_thread::yield();
  EXPECT_EQ(sink->ends(), 0u);
  stopped.now_ns += 2'000'000;
  sink->AwaitEnds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(sink->EndOf(1).status)) << sink->EndOf(1).status;
  timed.Stop();
}

// The digest differs in the sixth step of each epoch, whatever is in its plan. So requests with
// long answers are in the way again and again, and each goes on until then; those that come later
// are served. The clock moves only when nothing is left to do, so it shows nothing but pauses.
TEST_P(EngineLoopTest, DigestsThatDifferInEachEpochMakePausesGrowAndOthersAreServed) {
  MovedClock moved;
  std::vector<std::int64_t> lost_ms;
  InProcessEngineOptions options;
  options.rounds_on_senders = GetParam();
  options.on_lost = [&](const flotilla::Lost& lost) {
    EXPECT_EQ(lost.cause, flotilla::Lost::Cause::kDigest);
    lost_ms.push_back(moved.now_ns / 1'000'000);
  };
  testing::FakeExecutorOptions manual;
  manual.manual = true;
  testing::FakeExecutor fake(manual);
  fake.CorruptDigestInEachEpoch(Step(6));
  InProcessEngine drifting(options, &fake, &moved);
  ASSERT_TRUE(drifting.Start().ok());
  fake.AdvanceAll();  // Ready
  ASSERT_TRUE(drifting.WaitReady().ok());
  for (std::uint64_t id = 1; id <= 8; ++id) drifting.Submit(Request(id, 4, 60), sink);
  auto later = std::make_shared<Collector>(), refused = std::make_shared<Collector>();
  std::uint64_t sent = 0;
  for (std::size_t turns = 1; sink->ends() < 8 || later->ends() < 10; ++turns) {
    ASSERT_LT(turns, 10'000u);
    // When this request without a prompt is refused, the engine has done all that came before.
    drifting.Submit(Request(1000 + turns, 0, 1), refused);
    refused->AwaitEnds(turns);
    if (drifting.probe().Read().groups_lost > sent) {
      ++sent;
      drifting.Submit(Request(100 + sent, 4, 2), later);
    } else if (!fake.Advance()) {
      moved.now_ns += 10'000'000;
    }
  }
  drifting.Stop();
  EXPECT_THAT(lost_ms, ElementsAre(0, 100, 300, 700, 1500, 3100, 6300, 12700, 22700, 32700));
  for (std::uint64_t id = 101; id <= 110; ++id) ExpectWholeAnswer(later->Of(id), id, 2);
  for (std::uint64_t id = 1; id <= 8; ++id) {
    const std::vector<EngineEvent> events = sink->Of(id);
    EXPECT_GT(events.size(), 3u + 5) << id;  // it has had tokens in more than one epoch
    EXPECT_EQ(std::get<SequenceEnd>(events[events.size() - 2]).reason, FinishReason::kMoved);
    EXPECT_TRUE(absl::IsUnavailable(sink->EndOf(id).status)) << sink->EndOf(id).status;
  }
  const CoreCounters counters = drifting.probe().Read().core.counters;
  EXPECT_EQ(counters.refused_failures, 0u);
  EXPECT_EQ(counters.refused_given_back, 8u);
}

TEST_P(EngineLoopTest, BeforeTheFirstGroupRequestsAreRefused) {
  testing::FakeExecutorOptions fake;
  fake.manual = true;
  Start({}, fake);
  EXPECT_TRUE(absl::IsUnavailable(engine->Describe().status()));
  engine->Submit(Request(1, 1, 1), sink);
  sink->AwaitEnds(1);
  EXPECT_TRUE(absl::IsUnavailable(sink->EndOf(1).status));
}

TEST_P(EngineLoopTest, DescribesTheModelAndWhatThePoolCanHold) {
  testing::FakeExecutorOptions fake;
  fake.description.block_count = 11;  // ten blocks of 16
  InProcessEngineOptions options;
  options.model_id = "served";
  options.tokenizer_bytes = "bytes";
  options.tokenizer_hash = 77;
  Start(options, fake);
  const EngineDescription description = engine->Describe().value();
  EXPECT_EQ(description.model_id, "served");
  EXPECT_EQ(description.max_context, 160u);
  EXPECT_EQ(description.tokenizer_hash, 77u);
  EXPECT_EQ(description.max_sequences, 64u);
  EXPECT_EQ(engine->TokenizerBytes().value(), "bytes");
}

TEST_P(EngineLoopTest, DrainRefusesAndReportsTheLastEnd) {
  Start();
  engine->Submit(Request(1, 4, 500), sink);
  sink->AwaitTokens(1);
  Signal drained;
  engine->Drain([&] { drained.Set(); });
  engine->Submit(Request(2, 4, 5), sink);
  drained.Await();
  sink->AwaitEnds(2);
  ExpectWholeAnswer(sink->Of(1), 1, 500);
  EXPECT_TRUE(absl::IsUnavailable(sink->EndOf(2).status));
}

TEST_P(EngineLoopTest, SecondRequestOfALiveIdIsRefusedAtItsOwnSink) {
  testing::FakeExecutorOptions fake;
  fake.manual = true;  // otherwise the first request could end before the second comes
  Start({}, fake);
  executor->AdvanceAll();  // Ready
  ASSERT_TRUE(engine->WaitReady().ok());
  engine->Submit(Request(1, 4, 8000), sink);
  AdvanceWhile([&] { return sink->tokens() < 1; });
  auto other = std::make_shared<Collector>();
  engine->Submit(Request(1, 4, 8), other);
  AdvanceWhile([&] { return other->ends() < 1; });
  EXPECT_TRUE(absl::IsAlreadyExists(other->EndOf(1).status));
  engine->Cancel({.request = {1, 1}});
  AdvanceWhile([&] { return sink->ends() < 1; });
  EXPECT_TRUE(sink->EndOf(1).status.ok());
}

TEST_P(EngineLoopTest, StopEndsEverythingOnceAndLaterRequestsAreRefused) {
  Start();
  executor->Pause();
  for (std::uint64_t id = 1; id <= 70; ++id) engine->Submit(Request(id, 4, 50), sink);
  engine->Stop();
  sink->AwaitEnds(70);
  for (std::uint64_t id = 1; id <= 70; ++id) {
    EXPECT_TRUE(absl::IsUnavailable(sink->EndOf(id).status));
  }
  engine->Submit(Request(71, 4, 50), sink);
  EXPECT_TRUE(absl::IsUnavailable(sink->EndOf(71).status));
  bool drained = false;
  engine->Drain([&] { drained = true; });
  EXPECT_TRUE(drained);
}

// A sink that blocks the round until `release` is set.
class BlockingSink final : public EventSink {
 public:
  void Post(std::vector<EngineEvent>) override {
    entered.Set();
    release.Await();
  }
  Signal entered, release;
};

TEST_P(EngineLoopTest, FullInboxRefusesAtOnce) {
  InProcessEngineOptions options;
  options.max_inbox_requests = 3;
  Start(options);
  auto blocking = std::make_shared<BlockingSink>();
  std::thread sender([&] { engine->Submit(Request(1, 4, 1), blocking); });
  blocking->entered.Await();  // the round is blocked now, so no thread takes messages
  for (std::uint64_t id = 2; id <= 5; ++id) engine->Submit(Request(id, 4, 2), sink);
  sink->AwaitEnds(1);
  EXPECT_TRUE(absl::IsResourceExhausted(sink->EndOf(5).status));
  EXPECT_GT(sink->EndOf(5).retry_after_ms, 0);
  blocking->release.Set();
  sender.join();
  sink->AwaitEnds(4);
  for (std::uint64_t id = 2; id <= 4; ++id) ExpectWholeAnswer(sink->Of(id), id, 2);
}

// An executor over a FakeExecutor. Some of its results name a wrong step.
class LyingExecutor final : public StepExecutor, private ExecutorListener {
 public:
  // Changes the step number in the result of `step` in the first `epochs` epochs.
  LyingExecutor(Step step, std::uint64_t epochs) : step_(step), epochs_(epochs) {}

  absl::Status Start(ExecutorListener* listener) override {
    listener_ = listener;
    return fake_.Start(this);
  }
  absl::Status Execute(StepPlan plan) override { return fake_.Execute(std::move(plan)); }
  void EndEpoch(Epoch epoch) override { fake_.EndEpoch(epoch); }
  void Stop() override { fake_.Stop(); }

 private:
  void OnReady(Epoch epoch, const ExecutorDescription& description) override {
    listener_->OnReady(epoch, description);
  }
  void OnResult(StepResult result) override {
    if (result.step == step_ && result.epoch <= Epoch(epochs_)) result.step = Step(99);
    listener_->OnResult(std::move(result));
  }
  void OnLost(const Lost& lost) override { listener_->OnLost(lost); }

  const Step step_;
  const std::uint64_t epochs_;
  testing::FakeExecutor fake_;
  ExecutorListener* listener_ = nullptr;
};

TEST_P(EngineLoopTest, AWrongResultIsNotServedAndItsRequestsAreComputedAgain) {
  for (std::uint64_t step = 1; step <= 4; ++step) {
    LyingExecutor liar(Step(step), 2);
    InProcessEngine lied_to({}, &liar, &clock);
    auto answers = std::make_shared<Collector>();
    ASSERT_TRUE(lied_to.Start().ok());
    ASSERT_TRUE(lied_to.WaitReady().ok());
    for (std::uint64_t id = 1; id <= 3; ++id) lied_to.Submit(Request(id, 4, 6), answers);
    answers->AwaitEnds(3);
    for (std::uint64_t id = 1; id <= 3; ++id) ExpectWholeAnswer(answers->Of(id), id, 6);
    lied_to.Stop();
  }
}

TEST_P(EngineLoopTest, AGroupThatKeepsLyingFailsItsRequestsAndIsReadyForOthers) {
  LyingExecutor liar(Step(2), 3);
  InProcessEngine lied_to({}, &liar, &clock);
  ASSERT_TRUE(lied_to.Start().ok());
  ASSERT_TRUE(lied_to.WaitReady().ok());
  lied_to.Submit(Request(1, 4, 6), sink);
  sink->AwaitEnds(1);
  EXPECT_TRUE(absl::IsInternal(sink->EndOf(1).status));
  lied_to.Submit(Request(2, 4, 6), sink);
  sink->AwaitEnds(2);
  ExpectWholeAnswer(sink->Of(2), 2, 6);
  lied_to.Stop();
}

// With rounds on senders, rounds run within Submit and within the calls of the executor, so no
// other thread is woken. Otherwise they never run there.
TEST_P(EngineLoopTest, RoundsRunWhereTheyAreToRun) {
  absl::Mutex mu;
  std::set<std::thread::id> threads;
  InProcessEngineOptions options;
  options.on_planned = [&](const SchedulerCore&) {
    absl::MutexLock lock(&mu);
    threads.insert(std::this_thread::get_id());
  };
  testing::FakeExecutorOptions fake;
  fake.manual = true;
  Start(options, fake);
  executor->AdvanceAll();  // Ready
  ASSERT_TRUE(engine->WaitReady().ok());
  {
    absl::MutexLock lock(&mu);
    threads.clear();
  }
  engine->Submit(Request(1, 4, 1), sink);
  AdvanceWhile([&] { return engine->probe().Read().core.counters.output_tokens == 0; });
  sink->AwaitEnds(1);
  engine->Stop();
  absl::MutexLock lock(&mu);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), GetParam() ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(Rounds, EngineLoopTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "OnSenders" : "OnTheLoop"; });

}  // namespace
}  // namespace flotilla::scheduler
