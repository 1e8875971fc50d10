// RemoteExecutor, over gRPC to an agent's server with a FakeExecutor or a real one
// behind it, passes the contract; and what it does when streams break.
#include "scheduler/remote/remote_executor.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/contract/executor_contract.h"
#include "tests/support/executor_recorder.h"
#include "tests/support/fake_executor.h"
#include "tests/support/plan_builder.h"
#include "tests/support/tiny_gguf.h"
#include "worker/agent/group_server.h"
#include "worker/exec/in_process_executor.h"

namespace flotilla::testing {
namespace {

// Starts another one later, when told.
class StartsLater final : public StepExecutor {
 public:
  explicit StartsLater(std::unique_ptr<StepExecutor> inner) : inner_(std::move(inner)) {}

  void StartNow() { EXPECT_TRUE(inner_->Start(listener_).ok()); }
  absl::Status Start(ExecutorListener* listener) override {
    listener_ = listener;
    return absl::OkStatus();
  }
  absl::Status Execute(StepPlan plan) override { return inner_->Execute(std::move(plan)); }
  void EndEpoch(Epoch epoch) override { inner_->EndEpoch(epoch); }
  void Stop() override { inner_->Stop(); }

 private:
  const std::unique_ptr<StepExecutor> inner_;
  ExecutorListener* listener_ = nullptr;
};

// Both ends of the wire, as one executor.
class RemoteExecutorPair final : public StepExecutor {
 public:
  explicit RemoteExecutorPair(std::unique_ptr<StepExecutor> behind)
      : behind_(std::make_unique<StartsLater>(std::move(behind))) {}

  absl::Status Start(ExecutorListener* listener) override {
    auto server = worker::GroupServer::Start({}, {}, behind_.get());
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    remote_ = std::make_unique<scheduler::RemoteExecutor>(rpc::PeerOptions{
        .address = absl::StrCat("127.0.0.1:", server_->port()), .retry = absl::Milliseconds(1)});
    absl::Status started = remote_->Start(listener);
    // The group lives after the scheduler came, so that it sees all of it.
    while (!absl::StrContains(remote_->status().message(), "not ready yet")) {
      std::this_thread::yield();
    }
    behind_->StartNow();
    return started;
  }
  absl::Status Execute(StepPlan plan) override { return remote_->Execute(std::move(plan)); }
  void EndEpoch(Epoch epoch) override { remote_->EndEpoch(epoch); }
  void Stop() override {
    if (remote_ != nullptr) remote_->Stop();
  }

 private:
  const std::unique_ptr<StartsLater> behind_;
  std::unique_ptr<worker::GroupServer> server_;
  std::unique_ptr<scheduler::RemoteExecutor> remote_;
};

ExecutorCase FakeOverGrpcCase() {
  return {"FakeOverGrpc", [] {
            auto fake = std::make_unique<FakeExecutor>();
            FakeExecutor* raw = fake.get();
            return ContractExecutor{std::make_unique<RemoteExecutorPair>(std::move(fake)),
                                    [raw](Step step) { raw->LoseDuring(step); },
                                    [raw](Step step) { raw->LoseAfter(step); }};
          }};
}

ExecutorCase RankOverGrpcCase() {
  return {"RankOverGrpc", [] {
            static const SteadyClock clock;
            static const std::vector<std::byte> bytes = TinyGguf();
            auto file = model::ParseCheckpoint(bytes);
            EXPECT_TRUE(file.ok()) << file.status();
            worker::RankOptions options;
            options.model_id = "tiny";
            options.threads = 2;
            options.kv_blocks = 64;
            options.poison_blocks = true;
            return ContractExecutor{std::make_unique<RemoteExecutorPair>(
                std::make_unique<worker::InProcessExecutor>(*std::move(file), options, &clock))};
          }};
}

INSTANTIATE_TEST_SUITE_P(RemoteExecutorPair, ExecutorContract,
                         ::testing::Values(FakeOverGrpcCase(), RankOverGrpcCase()),
                         ExecutorCaseName);
INSTANTIATE_TEST_SUITE_P(RemoteExecutorPair, ExecutorDeathContract,
                         ::testing::Values(FakeOverGrpcCase()), ExecutorCaseName);

class RemoteExecutorTest : public ::testing::Test {
 protected:
  void Serve(std::uint16_t port = 0) {
    executor_ = std::make_unique<FakeExecutor>();
    auto server = worker::GroupServer::Start({.port = port}, {.hash = 5, .content = "a tokenizer"},
                                             executor_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }
  std::unique_ptr<scheduler::RemoteExecutor> Attach(ExecutorRecorder* recorder) {
    auto remote = std::make_unique<scheduler::RemoteExecutor>(rpc::PeerOptions{
        .address = absl::StrCat("127.0.0.1:", port_), .retry = absl::Milliseconds(1)});
    EXPECT_TRUE(remote->Start(recorder).ok());
    return remote;
  }
  static StepPlan FirstPlan(Epoch epoch) {
    PlanBuilder plans(epoch);
    plans.Add(OpenSequence{.sequence = SequenceHandle(0), .tokens = {1, 2}, .prompt_tokens = 2});
    plans.Grant(SequenceHandle(0), {1});
    plans.Add(flotilla::Run{.sequence = SequenceHandle(0), .count = 2, .sample = true});
    return plans.Take();
  }

  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<worker::GroupServer> server_;
  std::uint16_t port_ = 0;
};

TEST_F(RemoteExecutorTest, AnAgentThatGoesIsALostGroupAndComesBackWithAHigherEpoch) {
  Serve();
  ExecutorRecorder recorder;
  auto remote = Attach(&recorder);
  for (std::size_t life = 1; life <= 3; ++life) {
    const Epoch epoch = recorder.WaitReady(life);
    EXPECT_TRUE(remote->status().ok());
    ASSERT_TRUE(remote->Execute(FirstPlan(epoch)).ok());
    recorder.WaitResult(life);
    server_.reset();  // and its executor's epochs begin again at 1
    const Lost lost = recorder.WaitLost(life);
    EXPECT_EQ(lost.cause, Lost::Cause::kDied);
    EXPECT_FALSE(lost.blames_requests) << "it computed nothing";
    EXPECT_EQ(lost.epoch, epoch);
    EXPECT_FALSE(remote->status().ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(remote->Execute(FirstPlan(epoch))));
    Serve(port_);
  }
  recorder.WaitReady(4);
  remote->Stop();
}

// Its requests may have used up the memory of all its processes.
TEST_F(RemoteExecutorTest, AWorkerThatIsGoneWithoutAWordBlamesItsOldestStep) {
  Serve();
  ExecutorRecorder recorder;
  auto remote = Attach(&recorder);
  executor_->Pause();
  StepPlan plan = FirstPlan(recorder.WaitReady(1));
  const Step step = plan.step;
  ASSERT_TRUE(remote->Execute(std::move(plan)).ok());
  while (executor_->queued() == 0) std::this_thread::yield();
  server_.reset();
  const Lost lost = recorder.WaitLost(1);
  EXPECT_EQ(lost.cause, Lost::Cause::kDied);
  EXPECT_TRUE(lost.blames_requests);
  EXPECT_EQ(lost.started, std::vector<Step>{step});
  remote->Stop();
}

// A worker that is restarted on purpose says so. It finishes its step, and nobody is blamed.
TEST_F(RemoteExecutorTest, AWorkerThatStopsFinishesItsStepAndBlamesNobody) {
  Serve();
  ExecutorRecorder recorder;
  auto remote = Attach(&recorder);
  const Epoch epoch = recorder.WaitReady(1);
  executor_->Pause();
  ASSERT_TRUE(remote->Execute(FirstPlan(epoch)).ok());
  while (executor_->queued() == 0) std::this_thread::yield();
  absl::Notification drained;
  server_->Drain([&] { drained.Notify(); });
  EXPECT_FALSE(drained.HasBeenNotified());
  EXPECT_EQ(recorder.event_count(), 1u);
  executor_->Resume();
  drained.WaitForNotification();
  server_->Stop();
  const Lost lost = recorder.WaitLost(1);
  EXPECT_EQ(recorder.result_count(), 1u);
  EXPECT_EQ(lost.cause, Lost::Cause::kStopped);
  EXPECT_FALSE(lost.blames_requests);
  remote->Stop();
}

TEST_F(RemoteExecutorTest, AWorkerThatStopsDoesNotWaitForAStepThatNeverEnds) {
  Serve();
  ExecutorRecorder recorder;
  auto remote = Attach(&recorder);
  executor_->Pause();
  ASSERT_TRUE(remote->Execute(FirstPlan(recorder.WaitReady(1))).ok());
  while (executor_->queued() == 0) std::this_thread::yield();
  int drained = 0;
  server_->Drain([&] { ++drained; });
  server_->Stop();
  EXPECT_EQ(drained, 1);
  const Lost lost = recorder.WaitLost(1);
  EXPECT_EQ(recorder.result_count(), 0u);
  EXPECT_EQ(lost.cause, Lost::Cause::kStopped);
  EXPECT_FALSE(lost.blames_requests);
  remote->Stop();
}

// No scheduler gets an epoch that is about to end.
TEST_F(RemoteExecutorTest, AWorkerThatStopsTakesNoScheduler) {
  Serve();
  int drained = 0;
  server_->Drain([&] { ++drained; });
  EXPECT_EQ(drained, 1);
  ExecutorRecorder recorder;
  auto remote = Attach(&recorder);
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  while (!absl::StrContains(remote->status().message(), "the worker stops") &&
         absl::Now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(absl::StrContains(remote->status().message(), "the worker stops"));
  EXPECT_EQ(recorder.event_count(), 0u);
  remote->Stop();
}

// What it left behind is not the next one's: that gets an epoch of its own.
TEST_F(RemoteExecutorTest, ASchedulerThatGoesEndsItsEpoch) {
  Serve();
  for (std::uint64_t life = 1; life <= 3; ++life) {
    ExecutorRecorder recorder;
    auto remote = Attach(&recorder);
    const Epoch epoch = recorder.WaitReady(1);
    EXPECT_EQ(executor_->epoch(), Epoch(life));
    ASSERT_TRUE(remote->Execute(FirstPlan(epoch)).ok());
    recorder.WaitResult(1);
    remote->Stop();
  }
}

TEST_F(RemoteExecutorTest, AnUnusedEpochServesTheNextOneToo) {
  Serve();
  for (int life = 1; life <= 3; ++life) {
    ExecutorRecorder recorder;
    auto remote = Attach(&recorder);
    recorder.WaitReady(1);
    remote->Stop();
    EXPECT_EQ(executor_->epoch(), Epoch(1));
  }
}

TEST_F(RemoteExecutorTest, ASecondSchedulerWaitsForTheFirstToGo) {
  Serve();
  ExecutorRecorder first_recorder, second_recorder;
  auto first = Attach(&first_recorder);
  const Epoch epoch = first_recorder.WaitReady(1);
  auto second = Attach(&second_recorder);
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  while (!absl::IsAlreadyExists(second->status()) && absl::Now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(absl::IsAlreadyExists(second->status())) << second->status();
  ASSERT_TRUE(first->Execute(FirstPlan(epoch)).ok());  // unharmed
  first_recorder.WaitResult(1);
  first->Stop();
  second_recorder.WaitReady(1);
  second->Stop();
}

TEST_F(RemoteExecutorTest, BringsTheTokenizer) {
  Serve();
  ExecutorRecorder recorder;
  auto remote = Attach(&recorder);
  const auto tokenizer = remote->FetchTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->hash, 5u);
  EXPECT_EQ(tokenizer->content, "a tokenizer");
  remote->Stop();
}

TEST_F(RemoteExecutorTest, NobodyThereIsNoFailure) {
  Serve();
  server_.reset();
  ExecutorRecorder recorder;
  auto remote = Attach(&recorder);
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  while (!absl::IsUnavailable(remote->status()) && absl::Now() < limit) std::this_thread::yield();
  EXPECT_TRUE(absl::IsUnavailable(remote->status())) << remote->status();
  EXPECT_EQ(recorder.event_count(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(remote->FetchTokenizer().status()));
  Serve(port_);
  recorder.WaitReady(1);
  remote->Stop();
}

}  // namespace
}  // namespace flotilla::testing
