// FleetEngine, over gRPC to one and to two schedulers, passes the contract; and what it
// does when schedulers come and go.
#include "router/remote/fleet_engine.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/rt/clock.h"
#include "router/remote/metrics.h"
#include "tests/contract/engine_contract.h"
#include "tests/contract/scheduler_process.h"
#include "tests/support/engine_recorder.h"
#include "tests/support/requests.h"

namespace flotilla::testing {
namespace {

using ::testing::HasSubstr;

std::string AddressOf(std::uint16_t port) { return absl::StrCat("127.0.0.1:", port); }

router::FleetOptions Options(absl::Duration hold = absl::Minutes(1)) {
  router::FleetOptions options;
  options.retry = absl::Milliseconds(1);
  options.core.hold_ns = absl::ToInt64Nanoseconds(hold);
  return options;
}

std::size_t ReplicasUp(const router::Fleet& fleet) {
  const std::vector<router::FleetReplica> replicas = fleet.Replicas();
  return static_cast<std::size_t>(
      std::count_if(replicas.begin(), replicas.end(), [](const auto& g) { return g.view.up; }));
}

// Waits until every scheduler that takes requests has heard all that the router told it,
// and the router all that came of it: a request that is refused there says so. A prompt
// that is worth more than any queue here brings it to one replica; which prompt brings it
// where is found out while all are idle, since any other prompt goes to the shortest queue.
class FleetSettler {
 public:
  void Settle(router::Fleet& fleet, Engine& engine) {
    bool quiet = false;
    for (int passes = 0; !quiet; ++passes) {
      ASSERT_LT(passes, 1000) << "requests do not stop moving between replicas";
      quiet = true;
      requests_ = Requests(fleet);
      for (const router::FleetReplica& replica : fleet.Replicas()) {
        int tries = 0;
        while (IsOpen(fleet, replica.address)) {
          const std::optional<std::string> asked = AskedBy(fleet, engine, replica.address);
          if (asked == replica.address) break;
          ASSERT_LT(++tries, 1000) << "no prompt goes to " << replica.address;
          quiet &= asked.has_value();
          if (asked.has_value()) homes_.erase(replica.address);
        }
      }
    }
  }

 private:
  // Now: one may begin to drain while it is asked.
  static bool IsOpen(const router::Fleet& fleet, const std::string& address) {
    const std::vector<router::FleetReplica> replicas = fleet.Replicas();
    return std::any_of(replicas.begin(), replicas.end(), [&](const router::FleetReplica& replica) {
      return replica.address == address && replica.view.open;
    });
  }

  static std::map<std::string, std::uint64_t> Requests(const router::Fleet& fleet) {
    std::map<std::string, std::uint64_t> requests;
    for (const router::FleetReplica& replica : fleet.Replicas()) {
      requests[replica.address] = replica.view.requests;
    }
    return requests;
  }

  // The replica that a request went to which should go to `wanted`. None if it cannot be told,
  // because another request was sent meanwhile: one replica may have refused it to another.
  std::optional<std::string> AskedBy(router::Fleet& fleet, Engine& engine,
                                     const std::string& wanted) {
    const auto home = homes_.find(wanted);
    const TokenId prompt = home == homes_.end() ? ++prompts_ : home->second;
    TokenizedRequest hopeless;
    hopeless.id = {7, ++count_};
    hopeless.attempt = Attempt(1);  // so that a router that drains sends it
    hopeless.prompt.assign(20'000, prompt);
    auto recorder = std::make_shared<EngineRecorder>();
    recorder->Expect(hopeless);
    engine.Submit(hopeless, recorder);
    WaitUntil([&] { return recorder->Ended(hopeless.id); });
    const std::map<std::string, std::uint64_t> before = std::exchange(requests_, Requests(fleet));
    std::optional<std::string> asked;
    for (const auto& [address, requests] : requests_) {
      const auto was = before.find(address);
      if (was == before.end() || requests == was->second) continue;
      if (asked.has_value() || requests != was->second + 1) return std::nullopt;
      asked = address;
    }
    if (asked.has_value()) homes_[*asked] = prompt;
    return asked;
  }

  std::map<std::string, TokenId> homes_;
  std::map<std::string, std::uint64_t> requests_;  // sent to each replica so far
  std::uint64_t count_ = 0;
  TokenId prompts_ = 0;
};

class FleetUnderTest final : public EngineUnderTest {
 public:
  explicit FleetUnderTest(std::size_t schedulers) : fleet_(Options(), &clock_) {
    std::vector<std::string> addresses;
    for (std::size_t i = 0; i < schedulers; ++i) {
      schedulers_.push_back(std::make_unique<SchedulerProcess>(SchedulerProcess::Options()));
      addresses.push_back(AddressOf(schedulers_.back()->port()));
    }
    fleet_.SetAddresses(addresses);
    WaitUntil([&] { return ReplicasUp(fleet_) == schedulers; });
    Settle();
  }
  ~FleetUnderTest() override { fleet_.Stop(); }

  Engine& engine() override { return engine_; }
  bool Pump() override {
    Settle();
    bool did = false;
    for (const auto& scheduler : schedulers_) did |= scheduler->executor().Advance();
    Settle();
    return did;
  }
  void Settle() override { settler_.Settle(fleet_, engine_); }

 private:
  const SteadyClock clock_;
  std::vector<std::unique_ptr<SchedulerProcess>> schedulers_;
  router::Fleet fleet_;
  router::FleetEngine engine_{&fleet_, 0};
  FleetSettler settler_;
};

INSTANTIATE_TEST_SUITE_P(
    Fleet, EngineContract,
    ::testing::Values(
        EngineCase{"FleetEngineOfOne", [] { return std::make_unique<FleetUnderTest>(1); }},
        EngineCase{"FleetEngineOfTwo", [] { return std::make_unique<FleetUnderTest>(2); }}),
    EngineCaseName);

TokenizedRequest FleetRequest(std::uint64_t number, std::uint32_t max_tokens) {
  return TestRequest({5, number}, {1, 2, 3, 4}, max_tokens);
}

class FleetEngineTest : public ::testing::Test {
 protected:
  ~FleetEngineTest() override {
    if (fleet_ != nullptr) fleet_->Stop();
  }

  void Begin(std::size_t schedulers, absl::Duration hold = absl::Minutes(1)) {
    for (std::size_t i = 0; i < schedulers; ++i) StartScheduler({});
    fleet_ = std::make_unique<router::Fleet>(Options(hold), &clock_);
    fleet_->SetAddresses(Addresses());
    engine_ = std::make_unique<router::FleetEngine>(fleet_.get(), 0);
    WaitUntil([&] { return ReplicasUp(*fleet_) == schedulers; });
    settler_.Settle(*fleet_, *engine_);
  }
  void StartScheduler(const SchedulerProcess::Options& options) {
    schedulers_.push_back(std::make_unique<SchedulerProcess>(options));
    ports_.push_back(schedulers_.back()->port());
  }
  std::vector<std::string> Addresses() const {
    std::vector<std::string> addresses;
    for (const std::uint16_t port : ports_) addresses.push_back(AddressOf(port));
    return addresses;
  }
  void Submit(const TokenizedRequest& request) {
    recorder_->Expect(request);
    engine_->Submit(request, recorder_);
  }
  // Steps all schedulers until `done`, one step at a time.
  template <class Done>
  void PumpUntil(const Done& done) {
    WaitUntil([&] {
      if (ReplicasUp(*fleet_) > 0) settler_.Settle(*fleet_, *engine_);
      for (const auto& scheduler : schedulers_) {
        if (scheduler != nullptr) scheduler->executor().Advance();
      }
      if (ReplicasUp(*fleet_) > 0) settler_.Settle(*fleet_, *engine_);
      return done();
    });
  }
  void GoAway(std::size_t i) {
    const std::size_t left = ReplicasUp(*fleet_) - 1;
    schedulers_[i].reset();
    WaitUntil([&] { return ReplicasUp(*fleet_) == left; });
  }
  void ComeBack(std::size_t i, SchedulerProcess::Options options = {}) {
    options.port = ports_[i];
    schedulers_[i] = std::make_unique<SchedulerProcess>(options);
  }
  // The scheduler that works on requests; only one does.
  std::size_t Busy() const {
    for (std::size_t i = 0; i < schedulers_.size(); ++i) {
      if (schedulers_[i] && schedulers_[i]->engine().Load().running_requests > 0) return i;
    }
    ADD_FAILURE() << "nobody works";
    return 0;
  }
  // The submission that goes on after what the recorder has of `request`.
  TokenizedRequest Again(TokenizedRequest request) {
    request.output_prefix = {recorder_->Answer(request.id).token_ids()};
    request.attempt = Attempt(request.attempt.value() + 1);
    return request;
  }
  absl::Status EndOf(std::uint64_t number) {
    return recorder_->Answer({5, number}).ends.at(0).status;
  }

  const SteadyClock clock_;
  std::vector<std::unique_ptr<SchedulerProcess>> schedulers_;
  std::vector<std::uint16_t> ports_;
  std::unique_ptr<router::Fleet> fleet_;
  std::unique_ptr<router::FleetEngine> engine_;
  FleetSettler settler_;
  std::shared_ptr<EngineRecorder> recorder_ = std::make_shared<EngineRecorder>();
};

TEST_F(FleetEngineTest, WhatIsGivenBackGoesOnWhenTheSchedulerIsBack) {
  Begin(1);
  TokenizedRequest request = FleetRequest(1, 40);
  Submit(request);
  std::vector<TokenId> all;
  for (int life = 0; life < 3; ++life) {
    PumpUntil([&] { return recorder_->TokenCount(request.id) >= 5; });
    GoAway(0);
    WaitUntil([&] { return recorder_->Ended(request.id); });
    const RecordedAnswer part = recorder_->Answer(request.id);
    ASSERT_EQ(part.sequence_ends.size(), 1u);
    EXPECT_EQ(part.sequence_ends[0].reason, FinishReason::kMoved);
    EXPECT_TRUE(absl::IsUnavailable(part.ends[0].status)) << part.ends[0].status;
    for (const TokenId token : part.token_ids()) all.push_back(token);
    request.output_prefix = {all};
    request.attempt = Attempt(request.attempt.value() + 1);
    Submit(request);                      // waits
    Submit(FleetRequest(100 + life, 3));  // a new one does not
    EXPECT_TRUE(absl::IsUnavailable(EndOf(100 + life)));
    ComeBack(0);
  }
  PumpUntil([&] { return recorder_->Ended(request.id); });
  for (const TokenId token : recorder_->Answer(request.id).token_ids()) all.push_back(token);
  ASSERT_EQ(all.size(), 40u);
  for (std::uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(all[i], FakeToken(1, SequenceIndex(0), i, 1000)) << i;
  }
  EXPECT_EQ(fleet_->Counters().replays[1][static_cast<int>(router::ReplayResult::kResumed)], 3u);
}

TEST_F(FleetEngineTest, AnotherReplicaGoesOnAtOnce) {
  Begin(3);
  TokenizedRequest request = FleetRequest(1, 40);
  Submit(request);
  std::vector<TokenId> all;
  for (int life = 0; life < 2; ++life) {
    PumpUntil([&] { return recorder_->TokenCount(request.id) >= 5; });
    GoAway(Busy());
    WaitUntil([&] { return recorder_->Ended(request.id); });
    const std::vector<TokenId> part = recorder_->Answer(request.id).token_ids();
    all.insert(all.end(), part.begin(), part.end());
    request.output_prefix = {all};
    request.attempt = Attempt(request.attempt.value() + 1);
    Submit(request);
  }
  PumpUntil([&] { return recorder_->Ended(request.id); });
  EXPECT_TRUE(EndOf(1).ok()) << EndOf(1);
  for (const TokenId token : recorder_->Answer(request.id).token_ids()) all.push_back(token);
  ASSERT_EQ(all.size(), 40u);
  for (std::uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(all[i], FakeToken(1, SequenceIndex(0), i, 1000)) << i;
  }
  EXPECT_EQ(fleet_->Counters().replays[1][static_cast<int>(router::ReplayResult::kSent)], 2u);
}

TEST_F(FleetEngineTest, AnotherBuildDoesNotGoOnWithAnAnswer) {
  Begin(1);
  Submit(FleetRequest(1, 40));
  PumpUntil([&] { return recorder_->TokenCount({5, 1}) >= 5; });
  GoAway(0);
  WaitUntil([&] { return recorder_->Ended({5, 1}); });
  TokenizedRequest begun = Again(FleetRequest(1, 40)), fresh = FleetRequest(2, 4);
  fresh.attempt = Attempt(1);
  Submit(begun);
  Submit(fresh);
  ComeBack(0, {.numerics_id = 4711});
  PumpUntil([&] { return recorder_->Ended({5, 1}) && recorder_->Ended({5, 2}); });
  EXPECT_TRUE(absl::IsUnavailable(EndOf(1)));
  EXPECT_TRUE(EndOf(2).ok());
}

TEST_F(FleetEngineTest, NobodyWaitsForever) {
  Begin(1, /*hold=*/absl::Milliseconds(20));
  GoAway(0);
  TokenizedRequest request = FleetRequest(1, 4);
  request.attempt = Attempt(1);
  Submit(request);
  WaitUntil([&] { return recorder_->Ended({5, 1}); });
  EXPECT_TRUE(absl::IsUnavailable(EndOf(1)));
}

TEST_F(FleetEngineTest, WhatWaitsCanBeCancelled) {
  Begin(1);
  GoAway(0);
  TokenizedRequest request = FleetRequest(1, 4);
  request.attempt = Attempt(1);
  request.sequences = 2;
  Submit(request);
  engine_->Cancel({.request = request.id, .sequence = SequenceIndex(1), .keep_tokens = 0});
  EXPECT_FALSE(recorder_->Ended(request.id));
  engine_->Cancel({.request = request.id, .sequence = SequenceIndex(0), .keep_tokens = 0});
  EXPECT_TRUE(recorder_->Ended(request.id));
}

TEST_F(FleetEngineTest, ASchedulerThatDrainsEndsWhatItHasAndGetsNothingNew) {
  Begin(2);
  Submit(FleetRequest(1, 20));
  PumpUntil([&] { return recorder_->TokenCount({5, 1}) >= 5; });
  const std::size_t busy = Busy();
  std::atomic<bool> drained = false;
  schedulers_[busy]->engine().Drain([&] { drained = true; });
  for (std::uint64_t number = 2; number < 12; ++number) Submit(FleetRequest(number, 3));
  PumpUntil([&] {
    for (std::uint64_t number = 1; number < 12; ++number) {
      if (!recorder_->Ended({5, number})) return false;
    }
    return true;
  });
  for (std::uint64_t number = 1; number < 12; ++number) {
    EXPECT_TRUE(EndOf(number).ok()) << number << ": " << EndOf(number);
  }
  WaitUntil([&] { return drained.load(); });
  EXPECT_FALSE(engine_->Load().draining) << "the other one is open";
}

TEST_F(FleetEngineTest, AnAddressThatVanishesIsLeftWhenItsRequestsAreOver) {
  Begin(2);
  Submit(FleetRequest(1, 20));
  PumpUntil([&] { return recorder_->TokenCount({5, 1}) >= 5; });
  const std::size_t busy = Busy(), other = 1 - busy;
  fleet_->SetAddresses({Addresses()[other]});
  EXPECT_EQ(fleet_->Replicas().size(), 2u);
  for (std::uint64_t number = 2; number < 8; ++number) Submit(FleetRequest(number, 3));
  PumpUntil([&] { return recorder_->Ended({5, 1}) && recorder_->Ended({5, 7}); });
  EXPECT_TRUE(EndOf(1).ok());
  EXPECT_EQ(schedulers_[busy]->engine().Load().running_requests, 0u);
  WaitUntil([&] { return fleet_->Replicas().size() == 1; });
  fleet_->SetAddresses(Addresses());
  WaitUntil([&] { return ReplicasUp(*fleet_) == 2; });
}

TEST_F(FleetEngineTest, ModelsAreWhatSchedulersServe) {
  StartScheduler({.model_id = "a"});
  StartScheduler({.model_id = "b"});
  StartScheduler({.model_id = "b", .tokenizer_hash = 78});  // says the same, means another
  fleet_ = std::make_unique<router::Fleet>(Options(), &clock_);
  fleet_->SetAddresses({Addresses()[0]});
  WaitUntil([&] { return ReplicasUp(*fleet_) == 1; });
  fleet_->SetAddresses({Addresses()[0], Addresses()[1]});
  WaitUntil([&] { return ReplicasUp(*fleet_) == 2; });
  fleet_->SetAddresses(Addresses());
  WaitUntil([&] { return ReplicasUp(*fleet_) == 3; });
  EXPECT_EQ(fleet_->Models(), (std::vector<std::string>{"a", "b"}));
  router::FleetEngine a(fleet_.get(), 0), b(fleet_.get(), 1);
  EXPECT_EQ(a.Describe()->model_id, "a");
  EXPECT_EQ(b.Describe()->model_id, "b");
  EXPECT_EQ(b.TokenizerBytes().value(), "a tokenizer");
  for (std::uint64_t number = 1; number <= 8; ++number) {
    recorder_->Expect(FleetRequest(number, 3));
    b.Submit(FleetRequest(number, 3), recorder_);
  }
  for (const router::FleetReplica& replica : fleet_->Replicas()) {
    const bool of_b = replica.view.model_id == "b" && replica.view.usable;
    EXPECT_EQ(replica.view.requests, of_b ? 8u : 0u) << replica.address;
  }
  fleet_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(EndOf(8)));
}

TEST_F(FleetEngineTest, AllOfTheRouterDrain) {
  Begin(2);
  Submit(FleetRequest(1, 6));
  std::atomic<bool> drained = false;
  fleet_->Drain([&] { drained = true; });
  Submit(FleetRequest(2, 6));
  EXPECT_TRUE(absl::IsUnavailable(EndOf(2)));
  EXPECT_FALSE(drained);
  PumpUntil([&] { return recorder_->Ended({5, 1}); });
  WaitUntil([&] { return drained.load(); });
}

TEST(FleetMetricsTest, ARouterShowsItsGroupsAndKeepsThoseThatLeft) {
  const SteadyClock clock;
  router::Fleet fleet({}, &clock);
  Metrics registry;
  router::WatchFleet(registry, &fleet);
  EXPECT_THAT(registry.Render(),
              HasSubstr("flotilla_router_replays_total{kind=\"begun\",result=\"sent\"} 0"));
  fleet.SetAddresses({"127.0.0.1:1"});  // where nobody listens
  const char* kUp = "flotilla_router_replica_up{replica=\"127.0.0.1:1\"} 0";
  const std::string page = registry.Render();
  EXPECT_THAT(page, HasSubstr(kUp));
  EXPECT_THAT(page,
              HasSubstr("flotilla_router_replica_outstanding_tokens{replica=\"127.0.0.1:1\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_replica_requests_total{replica=\"127.0.0.1:1\"} 0"));
  fleet.SetAddresses({});
  EXPECT_THAT(registry.Render(), HasSubstr(kUp));
}

}  // namespace
}  // namespace flotilla::testing
