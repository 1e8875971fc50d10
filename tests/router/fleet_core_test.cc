// Tests FleetCore as a pure value: replicas attach, refuse requests, give them back and go away.
#include "router/core/fleet_core.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/router/fleet_values.h"

namespace flotilla::router {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

class FleetCoreTest : public ::testing::Test {
 protected:
  static ReplicaId Id(std::uint64_t number) { return ReplicaId(number); }
  void Attach(std::uint64_t number, const EngineDescription& description = Description()) {
    core_.OnLoad(now_ns_, Id(number), {.ready = true});
    core_.OnAttached(now_ns_, Id(number), description);
  }
  void Add(std::uint64_t number, const EngineDescription& description = Description()) {
    core_.AddReplica(Id(number));
    Attach(number, description);
  }
  void Submit(const TokenizedRequest& request, std::size_t model = 0) {
    core_.Submit(now_ns_, model, request, owner_);
  }
  // Returns the replica that got the only submission since the last call; none: there was none.
  std::optional<std::uint64_t> SentTo() {
    FleetCore::Actions actions = core_.Take();
    for (auto& [sink, event] : actions.events) events_.push_back(std::move(event));
    std::optional<std::uint64_t> replica;
    for (const auto& [id, command] : actions.commands) {
      if (!std::holds_alternative<TokenizedRequest>(command)) continue;
      EXPECT_FALSE(replica.has_value()) << "sent twice";
      replica = id.value();
      sent_ = std::get<TokenizedRequest>(command);
    }
    return replica;
  }
  void Say(std::uint64_t replica, std::vector<EngineEvent> events) {
    core_.OnEvents(now_ns_, Id(replica), std::move(events));
  }
  void Accept(std::uint64_t replica, const TokenizedRequest& request) {
    Say(replica, {Accepted{request.id, request.attempt}});
  }
  void Refuse(std::uint64_t replica, const TokenizedRequest& request, absl::Status status,
              std::int64_t retry_after_ms = 0) {
    Say(replica, {RequestEnd{request.id, request.attempt, std::move(status), retry_after_ms, {}}});
  }
  void GiveBack(std::uint64_t replica, const TokenizedRequest& request) {
    Say(replica, {SequenceEnd{request.id, request.attempt, SequenceIndex(0), FinishReason::kMoved},
                  RequestEnd{request.id, request.attempt, absl::UnavailableError("gone"), 0, {}}});
  }
  // Submits the requests, which the only replica accepts.
  void Begin(std::uint64_t replica, std::initializer_list<std::uint64_t> ids) {
    for (const std::uint64_t id : ids) {
      Submit(Request(id));
      EXPECT_EQ(SentTo(), replica);
      Accept(replica, Request(id));
    }
  }
  // Returns the last end that an owner has received, and forgets the events before it.
  RequestEnd LastEnd() {
    SentTo();
    for (auto at = events_.rbegin(); at != events_.rend(); ++at) {
      if (const auto* end = std::get_if<RequestEnd>(&*at)) {
        const RequestEnd last = *end;
        events_.clear();
        return last;
      }
    }
    ADD_FAILURE() << "no request has ended";
    return {};
  }
  std::uint64_t Replays(bool begun, ReplayResult result) const {
    return core_.counters().replays[begun][static_cast<std::size_t>(result)];
  }

  std::int64_t now_ns_ = 0;
  FleetCore core_{{.hold_ns = 60 * kSecond, .move_after_ns = 10 * kSecond, .seed = 1}};
  const std::shared_ptr<Owner> owner_ = std::make_shared<Owner>();
  std::vector<EngineEvent> events_;
  TokenizedRequest sent_;
};

TEST_F(FleetCoreTest, NewRequestsNeedAReplicaThatIsThere) {
  core_.AddReplica(Id(1));
  Attach(1);
  core_.OnDetached(Id(1));
  Submit(Request(1));
  const RequestEnd end = LastEnd();
  EXPECT_TRUE(absl::IsUnavailable(end.status));
  EXPECT_GT(end.retry_after_ms, 0);
  Attach(1);
  Submit(Request(1));
  EXPECT_EQ(SentTo(), 1u);
}

TEST_F(FleetCoreTest, ARefusalForOverloadIsTriedOnceElsewhere) {
  for (const std::uint64_t replica : {1, 2, 3}) Add(replica);
  Submit(Request(1));
  const std::uint64_t first = *SentTo();
  Refuse(first, Request(1), absl::ResourceExhaustedError("full"), 300);
  const std::uint64_t second = *SentTo();
  EXPECT_NE(second, first);
  EXPECT_TRUE(events_.empty());
  Refuse(second, Request(1), absl::ResourceExhaustedError("full"), 700);
  EXPECT_EQ(LastEnd().retry_after_ms, 300) << "the shorter wait";
}

TEST_F(FleetCoreTest, ReplicasThatAreGoneOrDrainRefuseForNobody) {
  for (const std::uint64_t replica : {1, 2, 3}) Add(replica);
  Submit(Request(1));
  for (int i = 0; i < 3; ++i) {
    const std::optional<std::uint64_t> replica = SentTo();
    ASSERT_TRUE(replica.has_value());
    Refuse(*replica, Request(1), absl::UnavailableError("draining"), 10);
  }
  EXPECT_TRUE(absl::IsUnavailable(LastEnd().status));
}

TEST_F(FleetCoreTest, WhatIsWrongWithARequestIsTheOwnersToHear) {
  Add(1);
  Add(2);
  Submit(Request(1));
  Refuse(*SentTo(), Request(1), absl::InvalidArgumentError("prompt"));
  EXPECT_EQ(SentTo(), std::nullopt);
  EXPECT_TRUE(absl::IsInvalidArgument(LastEnd().status));
}

TEST_F(FleetCoreTest, AnAnswerThatBeganGoesOnOnlyWithEqualNumerics) {
  Add(1);
  Submit(Request(1));
  EXPECT_EQ(SentTo(), 1u);
  Accept(1, Request(1));
  Add(2, Description("m", /*numerics=*/2));
  core_.OnDetached(Id(1));
  GiveBack(1, Request(1));
  Submit(Request(1, 1));
  EXPECT_EQ(SentTo(), std::nullopt) << "waits for 1";
  EXPECT_TRUE(core_.waiting());
  Add(3);
  EXPECT_EQ(SentTo(), 3u);
  EXPECT_EQ(sent_.output_prefix, Request(1, 1).output_prefix);
  EXPECT_EQ(Replays(true, ReplayResult::kResumed), 1u);
  // The same holds when the next replica gives it back before it accepted it.
  core_.OnDetached(Id(3));
  Refuse(3, Request(1, 1), absl::UnavailableError("gone"));
  EXPECT_EQ(SentTo(), std::nullopt);
  // Both replicas come back with another build, so none can continue the request.
  Attach(1, Description("m", 2));
  EXPECT_EQ(SentTo(), std::nullopt) << "3 may come back";
  Attach(3, Description("m", 2));
  EXPECT_TRUE(absl::IsUnavailable(LastEnd().status));
  EXPECT_EQ(Replays(true, ReplayResult::kImpossible), 1u);
}

// The owner of a request stands still for long. No drain waits for the owner, but the numerics id
// of the request is still known.
TEST_F(FleetCoreTest, WhoComesBackLateGoesOnOnlyWithEqualNumerics) {
  Add(1);
  Submit(Request(1));
  SentTo();
  Accept(1, Request(1));
  core_.OnDetached(Id(1));
  GiveBack(1, Request(1));
  EXPECT_FALSE(core_.Drained(std::nullopt));
  now_ns_ += 11 * kSecond;
  core_.Tick(now_ns_);
  EXPECT_TRUE(core_.Drained(std::nullopt));
  Add(2, Description("m", /*numerics=*/2));
  Submit(Request(1, 1));
  EXPECT_EQ(SentTo(), std::nullopt) << "waits for 1";
  Attach(1);
  EXPECT_EQ(SentTo(), 1u);
  // A request whose owner never comes is forgotten.
  Accept(1, Request(1, 1));
  GiveBack(1, Request(1, 1));
  EXPECT_TRUE(core_.waiting());
  now_ns_ += 611 * kSecond;
  core_.Tick(now_ns_);
  EXPECT_FALSE(core_.waiting());
}

TEST_F(FleetCoreTest, WhatAReplicaDiedOfIsSentToTheNext) {
  Add(1);
  Submit(Request(1));
  EXPECT_EQ(SentTo(), 1u);
  EXPECT_EQ(sent_.crash_count, 0u);
  Accept(1, Request(1));
  const auto die = [&](std::uint64_t replica, std::uint32_t attempt, std::uint32_t count) {
    const TokenizedRequest request = Request(1, attempt);
    SentTo();
    core_.OnEvents(now_ns_, Id(replica),
                   {CrashCount{.request = request.id, .attempt = request.attempt, .count = count}});
    EXPECT_TRUE(core_.Take().events.empty()) << "the owner has nothing to do with it";
  };
  die(1, 0, 1);
  core_.OnDetached(Id(1));
  GiveBack(1, Request(1));
  Add(2);
  Submit(Request(1, 1));
  EXPECT_EQ(SentTo(), 2u);
  EXPECT_EQ(sent_.crash_count, 1u);
  // The second replica goes away without a crash, so the count stays.
  Accept(2, Request(1, 1));
  core_.OnDetached(Id(2));
  GiveBack(2, Request(1, 1));
  Add(3);
  Submit(Request(1, 2));
  EXPECT_EQ(SentTo(), 3u);
  EXPECT_EQ(sent_.crash_count, 1u);
}

// A request that may have killed a worker group is tried on another replica, if there is one,
// before a second death can fail it.
TEST_F(FleetCoreTest, AfterADeathAloneARequestIsTriedOnAnotherReplica) {
  Add(1);
  Begin(1, {1});
  const TokenizedRequest request = Request(1);
  const EngineEvent death =
      CrashCount{.request = request.id, .attempt = request.attempt, .count = 1};
  Say(1, {death});
  EXPECT_TRUE(core_.Take().commands.empty()) << "there is no other replica";
  Add(2);
  Say(1, {death});
  FleetCore::Actions actions = core_.Take();
  ASSERT_EQ(actions.commands.size(), 1u);
  EXPECT_EQ(actions.commands[0].first, Id(1));
  EXPECT_TRUE(std::holds_alternative<CancelRequest>(actions.commands[0].second));
  ASSERT_EQ(actions.events.size(), 2u) << "its sequence and its end, for the owner to go on";
  Submit(Request(1, 1));
  EXPECT_EQ(SentTo(), 2u);
  EXPECT_EQ(sent_.crash_count, 1u);
}

TEST_F(FleetCoreTest, WhatHasNotBegunGoesAnywhere) {
  Add(1);
  Submit(Request(1));
  SentTo();
  Accept(1, Request(1));
  Add(2, Description("m", /*numerics=*/2));
  core_.OnDetached(Id(1));
  GiveBack(1, Request(1));
  TokenizedRequest again = Request(1, 1);
  again.output_prefix = {{}};
  Submit(again);
  EXPECT_EQ(SentTo(), 2u);
  EXPECT_EQ(Replays(false, ReplayResult::kSent), 1u);
}

TEST_F(FleetCoreTest, AReplayPrefersOpenReplicasButTakesOneThatDrains) {
  Add(3);
  Begin(3, {1, 2});
  core_.OnDetached(Id(3));
  for (const std::uint64_t id : {1, 2}) GiveBack(3, Request(id));
  Add(1);
  Add(2);
  core_.OnLoad(now_ns_, Id(1), {.ready = true, .draining = true});
  Submit(Request(1, 1));
  EXPECT_EQ(SentTo(), 2u);
  core_.SetLeaving(Id(2), true);
  Submit(Request(2, 1));
  EXPECT_TRUE(SentTo().has_value());
  Submit(Request(3));
  EXPECT_TRUE(absl::IsUnavailable(LastEnd().status)) << "a new one";
}

// The scheduler of such a replica queues the request until its worker is back.
TEST_F(FleetCoreTest, AReplicaWithoutItsWorkerIsTheSecondBest) {
  Add(1);
  core_.OnLoad(now_ns_, Id(1), {.ready = false});
  Submit(Request(1));
  EXPECT_EQ(SentTo(), 1u);
  Add(2);
  Submit(Request(2));
  EXPECT_EQ(SentTo(), 2u);
}

// The first of two replicas has two requests, and its worker goes away.
class StuckTest : public FleetCoreTest {
 protected:
  StuckTest() {
    Add(1);
    for (const std::uint64_t number : {1, 2}) {
      TokenizedRequest request = Request(number);
      request.sequences = 2;
      Submit(request);
      EXPECT_EQ(SentTo(), 1u);
      Accept(1, request);
    }
    SentTo();
    events_.clear();
    EXPECT_FALSE(core_.waiting());
    core_.OnLoad(now_ns_, Id(1), {.ready = false});
    EXPECT_TRUE(core_.waiting());
  }
  // Returns the actions of Tick at this time: cancels and events.
  FleetCore::Actions At(std::int64_t seconds) {
    now_ns_ = seconds * kSecond;
    core_.Tick(now_ns_);
    return core_.Take();
  }
};

TEST_F(StuckTest, AnotherReplicaGoesOnAfterAWhile) {
  Add(2);
  EXPECT_TRUE(At(9).commands.empty());
  const FleetCore::Actions actions = At(10);
  ASSERT_EQ(actions.commands.size(), 2u);
  for (const auto& [replica, command] : actions.commands) {
    EXPECT_EQ(replica, Id(1));
    EXPECT_FALSE(std::get<CancelRequest>(command).sequence.has_value());
  }
  ASSERT_EQ(actions.events.size(), 6u) << "two sequences and the end of each";
  EXPECT_EQ(std::get<SequenceEnd>(actions.events[0].second).reason, FinishReason::kMoved);
  EXPECT_TRUE(absl::IsUnavailable(std::get<RequestEnd>(actions.events[2].second).status));
  EXPECT_FALSE(core_.Drained(0)) << "their owner comes again";
  // The worker is back. But its replica may still know the requests that were taken from it.
  core_.OnLoad(now_ns_, Id(1), {.ready = true});
  for (const std::uint64_t number : {1, 2}) {
    Submit(Request(number, 1));
    EXPECT_EQ(SentTo(), 2u);
    Accept(2, Request(number, 1));
    Say(1, {SequenceEnd{{1, number}, Attempt(0), SequenceIndex(0), FinishReason::kCancelled},
            RequestEnd{{1, number}, Attempt(0), absl::OkStatus(), 0, {}}});
    EXPECT_EQ(SentTo(), std::nullopt);
  }
  EXPECT_EQ(Replays(true, ReplayResult::kSent), 2u);
  EXPECT_FALSE(core_.waiting());
  EXPECT_EQ(core_.View(Id(1)).outstanding_tokens, 0u);
}

TEST_F(StuckTest, ItIsOnlyTakenFromAReplicaIfAnotherCouldGoOn) {
  Add(2, Description("m", /*numerics=*/2));
  Add(3, Description("other"));
  Add(4);
  core_.OnLoad(now_ns_, Id(4), {.ready = true, .draining = true});
  Add(5);
  core_.OnLoad(now_ns_, Id(5), {.ready = false});
  EXPECT_TRUE(At(100).commands.empty());
  EXPECT_TRUE(core_.waiting());
  core_.OnLoad(now_ns_, Id(5), {.ready = true});
  EXPECT_EQ(At(101).commands.size(), 2u);
}

TEST_F(StuckTest, AWorkerThatComesBackInTimeKeepsIt) {
  Add(2);
  now_ns_ = 9 * kSecond;
  core_.OnLoad(now_ns_, Id(1), {.ready = false});  // a repeated report does not begin the time anew
  core_.OnLoad(now_ns_, Id(1), {.ready = true});
  EXPECT_FALSE(core_.waiting());
  EXPECT_TRUE(At(50).commands.empty());
  core_.OnLoad(now_ns_, Id(1), {.ready = false});
  EXPECT_TRUE(At(59).commands.empty());
  core_.OnDetached(Id(1));  // from now on the stream gives requests back, not Tick
  EXPECT_TRUE(At(70).commands.empty());
}

// A request does not go to a replica that may still have it, nor to one that has refused it. It
// waits.
TEST_F(StuckTest, AReplicaThatItWasTakenFromMayTakeItLater) {
  Add(2);
  At(10);
  core_.OnDetached(Id(2));
  core_.OnLoad(now_ns_, Id(1), {.ready = true});
  Submit(Request(1, 1));
  EXPECT_EQ(SentTo(), std::nullopt);
  now_ns_ += kSecond;
  core_.Tick(now_ns_);
  EXPECT_EQ(SentTo(), 1u);
}

TEST_F(FleetCoreTest, WhatIsHeldExpiresOrMissesItsDeadline) {
  Add(1);
  Begin(1, {1, 2});
  core_.OnDetached(Id(1));
  for (const std::uint64_t id : {1, 2}) GiveBack(1, Request(id));
  Submit(Request(1, 1));
  TokenizedRequest hurried = Request(2, 1);
  hurried.deadline_ns = 5 * kSecond;
  Submit(hurried);
  EXPECT_EQ(SentTo(), std::nullopt);
  now_ns_ = 5 * kSecond;
  core_.Tick(now_ns_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(LastEnd().status));
  core_.Drain(std::nullopt);
  EXPECT_FALSE(core_.Drained(std::nullopt));
  now_ns_ = 60 * kSecond;
  core_.Tick(now_ns_);
  EXPECT_TRUE(absl::IsUnavailable(LastEnd().status));
  EXPECT_TRUE(core_.Drained(std::nullopt));
  EXPECT_FALSE(core_.waiting());
  EXPECT_EQ(Replays(true, ReplayResult::kExpired), 1u);
}

TEST_F(FleetCoreTest, ADrainWaitsForWhoIsAboutToSubmitAgain) {
  Add(1);
  Submit(Request(1));
  SentTo();
  Accept(1, Request(1));
  core_.Drain(0);
  GiveBack(1, Request(1));
  EXPECT_FALSE(core_.Drained(0));
  Submit(Request(1, 1));
  EXPECT_EQ(SentTo(), 1u) << "a replay passes the drain";
  Accept(1, Request(1, 1));
  Say(1, {RequestEnd{{1, 1}, Attempt(1), absl::OkStatus(), 0, {}}});
  EXPECT_TRUE(core_.Drained(0));
}

TEST_F(FleetCoreTest, CancelsFollowTheRequest) {
  Add(1);
  Add(2);
  TokenizedRequest request = Request(1);
  request.sequences = 2;
  Submit(request);
  const std::uint64_t first = *SentTo();
  core_.Cancel({.request = request.id, .sequence = SequenceIndex(1)});
  FleetCore::Actions actions = core_.Take();
  ASSERT_EQ(actions.commands.size(), 1u);
  EXPECT_EQ(actions.commands[0].first, Id(first));
  Refuse(first, request, absl::ResourceExhaustedError("full"));
  actions = core_.Take();
  ASSERT_EQ(actions.commands.size(), 2u) << "the request, and its cancel";
  EXPECT_TRUE(std::holds_alternative<CancelRequest>(actions.commands[1].second));
  EXPECT_NE(actions.commands[1].first, Id(first));
}

TEST_F(FleetCoreTest, EventsOfOthersAreDropped) {
  Add(1);
  Add(2);
  Submit(Request(1));
  const std::uint64_t replica = *SentTo();
  Accept(3 - replica, Request(1));
  Accept(replica, Request(1, 4));
  EXPECT_EQ(SentTo(), std::nullopt);
  EXPECT_TRUE(events_.empty());
}

TEST_F(FleetCoreTest, EqualPromptsGoTogetherAndAReplicaThatCameBackHasForgotten) {
  for (const std::uint64_t replica : {1, 2, 3, 4, 5, 6}) Add(replica);
  TokenizedRequest request = Request(1);
  request.prompt.assign(400, 5);
  std::uint64_t home = 0;
  for (std::uint64_t number = 1; number < 20; ++number) {
    request.id.counter = number;
    Submit(request);
    const std::uint64_t replica = *SentTo();
    if (home == 0) home = replica;
    EXPECT_EQ(replica, home);
    Say(home, {Accepted{request.id, request.attempt},
               RequestEnd{request.id, request.attempt, absl::OkStatus(), 0, {}}});
    core_.OnLoad(now_ns_, Id(home), {.outstanding_tokens = 20, .ready = true});
  }
  core_.OnDetached(Id(home));
  Attach(home);
  core_.OnLoad(now_ns_, Id(home), {.outstanding_tokens = 20, .ready = true});
  request.id.counter = 100;
  Submit(request);
  EXPECT_NE(SentTo(), home);
}

TEST_F(FleetCoreTest, WhatIsOutstandingFallsWithEveryTokenAndIsGoneAtTheEnd) {
  Add(1);
  TokenizedRequest request = Request(1);
  Submit(request);
  EXPECT_EQ(core_.View(Id(1)).outstanding_tokens, 13u);
  Accept(1, request);
  core_.OnLoad(now_ns_, Id(1),
               {.outstanding_tokens = 33, .ready = true});  // 20 are another router's
  EXPECT_EQ(core_.View(Id(1)).outstanding_tokens, 33u);
  Say(1, {TokenEvent{request.id, request.attempt, SequenceIndex(0), 0, {7}}});
  EXPECT_EQ(core_.View(Id(1)).outstanding_tokens, 29u) << "the prompt and a token";
  Say(1, {TokenEvent{request.id, request.attempt, SequenceIndex(0), 1, {7}},
          RequestEnd{request.id, request.attempt, absl::OkStatus(), 0, {}}});
  EXPECT_EQ(core_.View(Id(1)).outstanding_tokens, 20u);
}

TEST_F(FleetCoreTest, WhatIsOutstandingIsWhatTheReplicaExpects) {
  Add(1);
  TokenizedRequest request = Request(1);
  request.stop.max_tokens = 1000;
  Submit(request);
  EXPECT_EQ(SentTo(), 1u);
  Say(1, {Accepted{request.id, request.attempt, 40}});
  EXPECT_EQ(core_.View(Id(1)).outstanding_tokens, 43u) << "and not 1003";
  core_.OnLoad(now_ns_, Id(1), {.outstanding_tokens = 50, .ready = true});  // 7 of another router
  for (std::uint32_t i = 0; i < 45; ++i) {                                  // longer than expected
    Say(1, {TokenEvent{request.id, request.attempt, SequenceIndex(0), i, {7}}});
  }
  EXPECT_EQ(core_.View(Id(1)).outstanding_tokens, 7u);
  Say(1, {RequestEnd{request.id, request.attempt, absl::OkStatus(), 0, {}}});
  EXPECT_EQ(core_.View(Id(1)).outstanding_tokens, 7u);
}

// The second replica has less to do, by what is expected, although its request may have more.
TEST_F(FleetCoreTest, AReplicaIsChosenByWhatIsExpectedAndNotByMaxTokens) {
  Add(1);
  TokenizedRequest first = Request(1), second = Request(2);
  first.stop.max_tokens = 50;
  second.stop.max_tokens = 5000;
  second.prompt = {5, 6, 7};
  Submit(first);
  EXPECT_EQ(SentTo(), 1u);
  Say(1, {Accepted{first.id, first.attempt, 50}});
  Add(2);
  Submit(second);
  EXPECT_EQ(SentTo(), 2u);
  Say(2, {Accepted{second.id, second.attempt, 20}});
  TokenizedRequest third = Request(3);
  third.prompt = {8, 9};
  Submit(third);
  EXPECT_EQ(SentTo(), 2u);
}

TEST_F(FleetCoreTest, ModelsAreKeptApartAndLimitsAreTheLeast) {
  Add(1, Description("a"));
  Add(2, Description("b"));
  EngineDescription narrow = Description("a");
  narrow.max_context = 50;
  Add(3, narrow);
  Add(4, Description("a", 1, /*tokenizer=*/10));
  ASSERT_EQ(core_.models().size(), 2u);
  EXPECT_EQ(core_.Describe(0)->max_context, 50u);
  EXPECT_EQ(core_.Describe(1)->max_context, 100u);
  EXPECT_FALSE(core_.View(Id(4)).usable);
  for (std::uint64_t number = 1; number < 20; ++number) {
    Submit(Request(number), number % 2);
    const std::uint64_t replica = *SentTo();
    EXPECT_EQ(replica == 2, number % 2 == 1) << replica;
    EXPECT_NE(replica, 4u);
  }
}

TEST_F(FleetCoreTest, AReplicaThatLeavesIsKeptWhileItHasRequests) {
  Add(1);
  Submit(Request(1));
  EXPECT_EQ(SentTo(), 1u);
  core_.SetLeaving(Id(1), true);
  EXPECT_FALSE(core_.Removable(Id(1)));
  Accept(1, Request(1));
  Say(1, {RequestEnd{{1, 1}, Attempt(0), absl::OkStatus(), 0, {}}});
  EXPECT_TRUE(core_.Removable(Id(1)));
  core_.SetLeaving(Id(1), false);
  EXPECT_FALSE(core_.Removable(Id(1)));
}

}  // namespace
}  // namespace flotilla::router
