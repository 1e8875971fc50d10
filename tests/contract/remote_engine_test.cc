// RemoteEngine, over a stream to an EngineServer with an InProcessEngine behind it, passes
// the contract, with messages over gRPC and past it; and what it does when the stream
// breaks.
#include "router/remote/remote_engine.h"

#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/contract/engine_contract.h"
#include "tests/contract/scheduler_process.h"
#include "tests/support/engine_recorder.h"
#include "tests/support/requests.h"

namespace flotilla::testing {
namespace {

std::unique_ptr<router::RemoteEngine> Attach(std::uint16_t port, const Clock& clock) {
  auto engine = std::make_unique<router::RemoteEngine>(
      rpc::PeerOptions{.address = absl::StrCat("127.0.0.1:", port), .retry = absl::Milliseconds(1)},
      &clock);
  engine->Start();
  return engine;
}

// Waits until a scheduler has heard all that a router told it, and the router all that
// came of it: both sides hear in order, so a request that is refused there says so.
class Settler {
 public:
  void Settle(router::RemoteEngine& engine) {
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

class Remote final : public EngineUnderTest {
 public:
  Remote() : remote_(Attach(scheduler_.port(), clock_)) {
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
  SchedulerProcess scheduler_{{}};
  std::unique_ptr<router::RemoteEngine> remote_;
  Settler settler_;
};

INSTANTIATE_TEST_SUITE_P(Remote, EngineContract,
                         ::testing::Values(EngineCase{"OverGrpc",
                                                      [] { return std::make_unique<Remote>(); }}),
                         EngineCaseName);

TokenizedRequest ShortPrompt(std::uint64_t number, std::uint32_t max_tokens) {
  return TestRequest({5, number}, {1, 2, 3, 4}, max_tokens);
}

class RemoteEngineTest : public ::testing::Test {
 protected:
  void Begin() {
    scheduler_ = std::make_unique<SchedulerProcess>(SchedulerProcess::Options());
    port_ = scheduler_->port();
    remote_ = Attach(port_, clock_);
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
  const SteadyClock clock_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  std::uint16_t port_ = 0;
  std::unique_ptr<router::RemoteEngine> remote_;
  Settler settler_;
  std::shared_ptr<EngineRecorder> recorder_ = std::make_shared<EngineRecorder>();
};

TEST_F(RemoteEngineTest, WhatWasThereIsGivenBackAndTheRestRefused) {
  Begin();
  Submit(ShortPrompt(1, 40));
  PumpUntil([&] { return recorder_->TokenCount({5, 1}) >= 5; });
  GoAway();
  WaitUntil([&] { return recorder_->Ended({5, 1}); });
  const RecordedAnswer part = recorder_->Answer({5, 1});
  ASSERT_EQ(part.sequence_ends.size(), 1u);
  EXPECT_EQ(part.sequence_ends[0].reason, FinishReason::kMoved);
  EXPECT_TRUE(absl::IsUnavailable(part.ends[0].status)) << part.ends[0].status;
  TokenizedRequest again = ShortPrompt(2, 3);
  again.attempt = Attempt(1);
  Submit(again);
  EXPECT_TRUE(absl::IsUnavailable(recorder_->Answer({5, 2}).ends[0].status));
  EXPECT_FALSE(recorder_->Answer({5, 2}).accepted);
}

// The new scheduler may still be the old one, with the request about to end there.
TEST_F(RemoteEngineTest, TheSameSchedulerTakesItAgainAfterABrokenStream) {
  Begin();
  TokenizedRequest request = ShortPrompt(1, 40);
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

// The scheduler has not heard yet that a router's first stream is gone, so the replay waits there
// for the end of its predecessor.
class WaitingReplayTest : public RemoteEngineTest {
 protected:
  // Submits the request, and its replay on a second stream once each sequence has `tokens` tokens
  // at least. The replay knows these.
  void BeginReplay(std::uint32_t sequences, std::size_t tokens = 0) {
    Begin();
    second_ = Attach(port_, clock_);
    WaitUntil([&] { return second_->Load().ready; });
    request_ = ShortPrompt(1, 50);
    request_.sequences = sequences;
    Submit(request_);
    WaitUntil([&] { return scheduler_->engine().Load().running_requests == 1; });
    PumpUntil([&] {
      for (std::uint32_t i = 0; i < sequences; ++i) {
        if (recorder_->TokenCount(request_.id, i) < tokens) return false;
      }
      return true;
    });
    request_.attempt = Attempt(1);
    for (std::uint32_t i = 0; i < sequences; ++i) {
      std::vector<TokenId> known = recorder_->Answer(request_.id).token_ids(i);
      known.resize(tokens);
      request_.output_prefix.push_back(std::move(known));
    }
    replay_->Expect(request_);
    second_->Submit(request_, replay_);
  }
  // Ends the first stream, and runs steps until the replay has ended.
  void Finish() {
    settler_.Settle(*second_);  // the scheduler has heard all that the second stream said
    remote_->Stop();
    WaitUntil([&] { return !replay_->Answer(request_.id).sequence_ends.empty(); });
    WaitUntil([&] {
      scheduler_->executor().Advance();
      return replay_->Ended(request_.id);
    });
    WaitUntil([&] {
      scheduler_->executor().Advance();
      return scheduler_->engine().Load().running_requests == 0;
    });
  }

  std::unique_ptr<router::RemoteEngine> second_;
  TokenizedRequest request_;
  std::shared_ptr<EngineRecorder> replay_ = std::make_shared<EngineRecorder>();
};

TEST_F(WaitingReplayTest, ACancelOfAReplayThatWaitsEndsItAndNothingIsComputed) {
  BeginReplay(1);
  second_->Cancel({.request = request_.id, .sequence = {}, .keep_tokens = 0});
  Finish();
  const RecordedAnswer answer = replay_->Answer(request_.id);
  ASSERT_EQ(answer.sequence_ends.size(), 1u);
  EXPECT_EQ(answer.sequence_ends[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(answer.tokens[0].size(), 0u);
  EXPECT_TRUE(answer.ends[0].status.ok()) << answer.ends[0].status;
}

TEST_F(WaitingReplayTest, ACancelOfOneSequenceThatWaitsLeavesTheOther) {
  BeginReplay(2);
  second_->Cancel({.request = request_.id, .sequence = SequenceIndex(1), .keep_tokens = 3});
  Finish();
  const RecordedAnswer answer = replay_->Answer(request_.id);
  ASSERT_EQ(answer.sequence_ends.size(), 2u);
  EXPECT_EQ(answer.sequence_ends[0].sequence, SequenceIndex(1));
  EXPECT_EQ(answer.sequence_ends[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(answer.sequence_ends[0].output_tokens, 0u);  // the replay has none of its tokens
  EXPECT_EQ(answer.sequence_ends[1].reason, FinishReason::kLength);
  EXPECT_EQ(answer.tokens[0].size(), 50u);
  EXPECT_EQ(answer.tokens[1].size(), 0u);
}

TEST_F(WaitingReplayTest, CancelsOfAllSequencesOneByOneEndIt) {
  BeginReplay(2);
  for (const std::uint32_t sequence : {0, 1}) {
    second_->Cancel(
        {.request = request_.id, .sequence = SequenceIndex(sequence), .keep_tokens = 2});
  }
  Finish();
  const RecordedAnswer answer = replay_->Answer(request_.id);
  ASSERT_EQ(answer.sequence_ends.size(), 2u);
  for (const SequenceEnd& end : answer.sequence_ends) {
    EXPECT_EQ(end.reason, FinishReason::kCancelled);
  }
  EXPECT_EQ(answer.tokens[0].size() + answer.tokens[1].size(), 0u);
}

// The only sequence was cut to so many tokens, none of which comes again.
void ExpectCut(const RecordedAnswer& answer, std::uint32_t output_tokens) {
  ASSERT_EQ(answer.sequence_ends.size(), 1u);
  EXPECT_EQ(answer.sequence_ends[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(answer.sequence_ends[0].output_tokens, output_tokens);
  EXPECT_EQ(answer.tokens[0].size(), 0u);
  EXPECT_TRUE(answer.ends[0].status.ok()) << answer.ends[0].status;
}

// A client that has a part of the answer leaves, and the replay never comes to the engine.
TEST_F(WaitingReplayTest, ACancelOfAReplayWithTokensEndsItAndNothingIsComputed) {
  BeginReplay(1, /*tokens=*/5);
  second_->Cancel({.request = request_.id, .sequence = {}, .keep_tokens = 0});
  Finish();
  ExpectCut(replay_->Answer(request_.id), 0);
  EXPECT_EQ(scheduler_->engine().probe().Read().core.counters.accepted, 1u);
}

// The router finds a stop string in the tokens that it has, so the answer ends within them.
TEST_F(WaitingReplayTest, AStopStringOfAReplayWithTokensCutsItsAnswer) {
  BeginReplay(1, /*tokens=*/5);
  second_->Cancel({.request = request_.id, .sequence = SequenceIndex(0), .keep_tokens = 3});
  Finish();
  const RecordedAnswer answer = replay_->Answer(request_.id);
  ExpectCut(answer, 3);
  EXPECT_EQ(answer.ends[0].usage.prompt_tokens, 4u);
  EXPECT_EQ(answer.ends[0].usage.output_tokens, 3u);
  EXPECT_EQ(scheduler_->engine().probe().Read().core.counters.accepted, 1u);
}

TEST_F(WaitingReplayTest, AStopStringOfOneSequenceCutsItAndTheOtherGoesOn) {
  BeginReplay(2, /*tokens=*/5);
  second_->Cancel({.request = request_.id, .sequence = SequenceIndex(1), .keep_tokens = 3});
  Finish();
  const RecordedAnswer answer = replay_->Answer(request_.id);
  ASSERT_EQ(answer.sequence_ends.size(), 2u);
  EXPECT_EQ(answer.sequence_ends[0].sequence, SequenceIndex(1));
  EXPECT_EQ(answer.sequence_ends[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(answer.sequence_ends[0].output_tokens, 3u);
  EXPECT_EQ(answer.tokens[1].size(), 0u);
  EXPECT_EQ(answer.sequence_ends[1].reason, FinishReason::kLength);
  ASSERT_EQ(answer.tokens[0].size(), 45u);  // those after the five that the client has
  EXPECT_EQ(answer.token_ids()[0], FakeToken(request_.sampling.seed, SequenceIndex(0), 5, 1000));
  EXPECT_EQ(answer.ends[0].usage.output_tokens, 53u);
}

TEST_F(RemoteEngineTest, ARouterThatGoesIsCancelled) {
  Begin();
  Submit(ShortPrompt(1, 1000));
  Submit(ShortPrompt(2, 1000));
  PumpUntil([&] { return recorder_->TokenCount({5, 2}) >= 2; });
  remote_->Stop();
  PumpUntil([&] { return scheduler_->engine().Load().blocks_used == 0; });
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
