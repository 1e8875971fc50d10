// RemoteEngine, over gRPC to an EngineServer with an InProcessEngine behind it, passes
// the contract; and what it does when the stream breaks.
#include "router/remote/remote_engine.h"

#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/remote/engine_server.h"
#include "scheduler/server/engine_loop.h"
#include "tests/contract/engine_contract.h"
#include "tests/support/engine_recorder.h"
#include "worker/fake_executor.h"

namespace flotilla::testing {
namespace {

template <class Done>
void WaitUntil(const Done& done) {
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  while (!done()) {
    ASSERT_LT(absl::Now(), limit) << "what was waited for did not come";
    std::this_thread::yield();
  }
}

// A scheduler's process: a worker group, its engine, and the engine's server.
class SchedulerProcess {
 public:
  explicit SchedulerProcess(std::uint16_t port = 0, bool manual = true,
                            std::uint64_t numerics_id = 0)
      : executor_(Options(manual, numerics_id)),
        engine_({.core = {.max_queued_tokens = 4096},
                 .tokenizer_bytes = "a tokenizer",
                 .tokenizer_hash = 77},
                &executor_, &clock_) {
    EXPECT_TRUE(engine_.Start().ok());
    if (manual) executor_.AdvanceAll();  // Ready
    EXPECT_TRUE(engine_.WaitReady().ok());
    auto server = EngineServer::Start(
        {.listen = {.port = port}, .load_interval = absl::Milliseconds(1)}, &engine_, &clock_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~SchedulerProcess() {
    server_->Stop();
    engine_.Stop();
  }

  std::uint16_t port() const { return server_->port(); }
  FakeExecutor& executor() { return executor_; }
  InProcessEngine& engine() { return engine_; }

 private:
  static FakeExecutorOptions Options(bool manual, std::uint64_t numerics_id) {
    FakeExecutorOptions options;
    options.manual = manual;
    options.description.max_context = 1024;
    if (numerics_id != 0) options.description.numerics_id = numerics_id;
    return options;
  }

  const SteadyClock clock_;
  FakeExecutor executor_;
  InProcessEngine engine_;
  std::unique_ptr<EngineServer> server_;
};

std::unique_ptr<RemoteEngine> Attach(std::uint16_t port, const Clock& clock,
                                     absl::Duration hold = absl::Minutes(1)) {
  auto engine = std::make_unique<RemoteEngine>(
      RemoteEngineOptions{.address = absl::StrCat("127.0.0.1:", port),
                          .retry = absl::Milliseconds(1),
                          .hold = hold},
      &clock);
  engine->Start();
  return engine;
}

// Waits until a scheduler has heard all that a router told it, and the router all that
// came of it: both sides hear in order, so a request that is refused there says so.
class Settler {
 public:
  void Settle(RemoteEngine& engine) {
    TokenizedRequest hopeless;
    hopeless.id = {7, ++count_};
    hopeless.attempt = Attempt(1);  // so that a router that drains sends it
    auto recorder = std::make_shared<EngineRecorder>();
    recorder->Expect(hopeless);
    engine.Submit(hopeless, recorder);
    WaitUntil([&] { return recorder->Ended(hopeless.id); });
  }

 private:
  std::uint64_t count_ = 0;
};

class OverGrpc final : public EngineUnderTest {
 public:
  OverGrpc() : remote_(Attach(scheduler_.port(), clock_)) {
    WaitUntil([&] { return remote_->Load().ready; });
  }
  Engine& engine() override { return *remote_; }
  bool Pump() override {
    Settle();
    const bool did = scheduler_.executor().Advance();
    Settle();
    return did;
  }
  void Settle() override { settler_.Settle(*remote_); }

 private:
  const SteadyClock clock_;
  SchedulerProcess scheduler_;
  std::unique_ptr<RemoteEngine> remote_;
  Settler settler_;
};

INSTANTIATE_TEST_SUITE_P(Remote, EngineContract,
                         ::testing::Values(EngineCase{"RemoteEngine",
                                                      [] { return std::make_unique<OverGrpc>(); }}),
                         EngineCaseName);

TokenizedRequest Request(std::uint64_t number, std::uint32_t max_tokens) {
  TokenizedRequest request;
  request.id = {5, number};
  request.prompt = {1, 2, 3, 4};
  request.sampling.seed = number;
  request.stop.max_tokens = max_tokens;
  return request;
}

class RemoteEngineTest : public ::testing::Test {
 protected:
  void Begin(absl::Duration hold = absl::Minutes(1)) {
    scheduler_ = std::make_unique<SchedulerProcess>();
    port_ = scheduler_->port();
    remote_ = Attach(port_, clock_, hold);
    WaitUntil([&] { return remote_->Load().ready; });
  }
  void Submit(const TokenizedRequest& request) {
    recorder_->Expect(request);
    remote_->Submit(request, recorder_);
  }
  // Steps until `done`, one at a time.
  template <class Done>
  void PumpUntil(const Done& done) {
    WaitUntil([&] {
      if (remote_->Load().ready) settler_.Settle(*remote_);
      scheduler_->executor().Advance();
      if (remote_->Load().ready) settler_.Settle(*remote_);
      return done();
    });
  }
  void GoAway() {
    scheduler_.reset();
    WaitUntil([&] { return !remote_->Load().ready; });
  }
  void ComeBack(std::uint64_t numerics_id = 0) {
    scheduler_ = std::make_unique<SchedulerProcess>(port_, true, numerics_id);
  }
  // The submission that goes on after what the recorder has of `request`.
  TokenizedRequest Again(TokenizedRequest request) {
    request.output_prefix = {recorder_->Answer(request.id).token_ids()};
    request.attempt = Attempt(request.attempt.value() + 1);
    return request;
  }

  const SteadyClock clock_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  std::uint16_t port_ = 0;
  std::unique_ptr<RemoteEngine> remote_;
  Settler settler_;
  std::shared_ptr<EngineRecorder> recorder_ = std::make_shared<EngineRecorder>();
};

TEST_F(RemoteEngineTest, WhatWasThereIsGivenBackAndGoesOnWhenTheSchedulerIsBack) {
  Begin();
  TokenizedRequest request = Request(1, 40);
  Submit(request);
  std::vector<TokenId> all;
  for (int life = 0; life < 3; ++life) {
    PumpUntil([&] { return recorder_->TokenCount(request.id) >= 5; });
    GoAway();
    WaitUntil([&] { return recorder_->Ended(request.id); });
    const RecordedAnswer part = recorder_->Answer(request.id);
    ASSERT_EQ(part.branch_ends.size(), 1u);
    EXPECT_EQ(part.branch_ends[0].reason, FinishReason::kMoved);
    EXPECT_TRUE(absl::IsUnavailable(part.ends[0].status)) << part.ends[0].status;
    for (const TokenId token : part.token_ids()) all.push_back(token);
    request.output_prefix = {all};
    request.attempt = Attempt(request.attempt.value() + 1);
    Submit(request);                 // waits
    Submit(Request(100 + life, 3));  // a new one does not
    EXPECT_TRUE(absl::IsUnavailable(recorder_->Answer(RequestId{5, 100u + life}).ends[0].status));
    ComeBack();
  }
  PumpUntil([&] { return recorder_->Ended(request.id); });
  for (const TokenId token : recorder_->Answer(request.id).token_ids()) all.push_back(token);
  ASSERT_EQ(all.size(), 40u);
  for (std::uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(all[i], FakeToken(1, BranchIndex(0), i, 1000)) << i;
  }
}

// The new scheduler may still be the old one, with the request about to end there.
TEST_F(RemoteEngineTest, TheSameSchedulerTakesItAgainAfterABrokenStream) {
  Begin();
  TokenizedRequest request = Request(1, 40);
  Submit(request);
  PumpUntil([&] { return recorder_->TokenCount(request.id) >= 5; });
  remote_->Stop();  // as a router that dies
  EXPECT_TRUE(recorder_->Ended(request.id));
  remote_ = Attach(port_, clock_);
  WaitUntil([&] { return remote_->Load().ready; });
  request.output_prefix = {recorder_->Answer(request.id).token_ids()};
  request.attempt = Attempt(1);
  recorder_->Expect(request);
  remote_->Submit(request, recorder_);
  PumpUntil([&] { return recorder_->Ended(request.id); });
  EXPECT_TRUE(recorder_->Answer(request.id).ends[0].status.ok());
  WaitUntil([&] { return scheduler_->engine().Load().running_requests == 0; });
}

TEST_F(RemoteEngineTest, ARouterThatGoesIsCancelled) {
  Begin();
  Submit(Request(1, 1000));
  Submit(Request(2, 1000));
  PumpUntil([&] { return recorder_->TokenCount({5, 2}) >= 2; });
  remote_->Stop();
  PumpUntil([&] { return scheduler_->engine().Load().blocks_used == 0; });
}

TEST_F(RemoteEngineTest, AnotherModelDoesNotGoOnWithAnAnswer) {
  Begin();
  Submit(Request(1, 40));
  PumpUntil([&] { return recorder_->TokenCount({5, 1}) >= 5; });
  GoAway();
  WaitUntil([&] { return recorder_->Ended({5, 1}); });
  TokenizedRequest begun = Again(Request(1, 40)), fresh = Request(2, 4);
  fresh.attempt = Attempt(1);
  Submit(begun);
  Submit(fresh);
  ComeBack(/*numerics_id=*/4711);
  PumpUntil([&] { return recorder_->Ended({5, 1}) && recorder_->Ended({5, 2}); });
  EXPECT_TRUE(absl::IsUnavailable(recorder_->Answer({5, 1}).ends[0].status));
  EXPECT_TRUE(recorder_->Answer({5, 2}).ends[0].status.ok());
}

TEST_F(RemoteEngineTest, NobodyWaitsForever) {
  Begin(/*hold=*/absl::Milliseconds(20));
  GoAway();
  TokenizedRequest request = Request(1, 4);
  request.attempt = Attempt(1);
  Submit(request);
  WaitUntil([&] { return recorder_->Ended({5, 1}); });
  EXPECT_TRUE(absl::IsUnavailable(recorder_->Answer({5, 1}).ends[0].status));
}

TEST_F(RemoteEngineTest, WhatWaitsCanBeCancelled) {
  Begin();
  GoAway();
  TokenizedRequest request = Request(1, 4);
  request.attempt = Attempt(1);
  request.branches = 2;
  Submit(request);
  remote_->Cancel({.request = request.id, .branch = BranchIndex(1), .keep_tokens = 0});
  EXPECT_FALSE(recorder_->Ended(request.id));
  remote_->Cancel({.request = request.id, .branch = BranchIndex(0), .keep_tokens = 0});
  EXPECT_TRUE(recorder_->Ended(request.id));
}

TEST_F(RemoteEngineTest, BringsTheTokenizer) {
  Begin();
  EXPECT_EQ(remote_->TokenizerBytes().value(), "a tokenizer");
  EXPECT_EQ(remote_->Describe()->tokenizer_hash, 77u);
  GoAway();
  EXPECT_TRUE(absl::IsUnavailable(remote_->TokenizerBytes().status()));
  EXPECT_TRUE(remote_->Describe().ok());  // the last that was known
}

}  // namespace
}  // namespace flotilla::testing
