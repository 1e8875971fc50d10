// Tests FleetCore with all kinds of events in a random order, from a seed.
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "router/core/fleet_core.h"
#include "tests/router/fleet_values.h"

namespace flotilla::router {
namespace {

// Makes random events. Owners submit again the requests that are given back. Replicas come, refuse,
// go, change their build and leave. Tokens are only counted, because the test is about which events
// reach which owner.
class Storm {
 public:
  explicit Storm(std::uint64_t seed)
      : random_(seed), core_({.hold_ns = kHoldNs, .move_after_ns = kMoveAfterNs, .seed = seed}) {
    for (std::uint64_t id = 1; id <= kReplicas; ++id) {
      core_.AddReplica(ReplicaId(id));
      replicas_[ReplicaId(id)] = {};
    }
    Attach(ReplicaId(1), replicas_[ReplicaId(1)], 1);  // so that there is a model
  }

  void Run() {
    for (int i = 0; i < 2000; ++i) {
      Disturb();
      Perform();
    }
    WindDown();
  }

  std::uint64_t answered = 0, refused = 0, given_back = 0;

 private:
  static constexpr std::uint64_t kReplicas = 4;
  static constexpr std::int64_t kHoldNs = 1000;
  static constexpr std::int64_t kMoveAfterNs = 200;
  static constexpr std::uint32_t kTokens = 6;

  struct AtReplica {
    TokenizedRequest request;
    bool accepted = false;
    std::uint32_t tokens = 0;  // delivered, those of the prefix included
    bool cancelled = false;
  };
  struct Replica {
    bool attached = false;
    std::uint64_t numerics = 1;
    std::map<RequestId, AtReplica> requests;
  };
  struct Answer {
    TokenizedRequest request;
    std::uint32_t tokens = 0;
    std::uint64_t numerics = 0;  // of the replica that sent the first token
    bool open = true;            // an end is to come
    bool moved = false;
  };

  bool OneIn(int n) { return random_() % static_cast<unsigned>(n) == 0; }
  ReplicaId SomeReplica() { return ReplicaId(1 + random_() % kReplicas); }

  void Disturb() {
    now_ns_ += static_cast<std::int64_t>(random_() % 20);
    const ReplicaId id = SomeReplica();
    Replica& replica = replicas_[id];
    switch (random_() % 12) {
      case 0:
      case 1:
        return Submit();
      case 2:
        if (OneIn(4)) {
          replica.attached ? Detach(id, replica) : Attach(id, replica, OneIn(6) ? 2 : 1);
        }
        return;
      case 3:
        if (replica.attached) {
          core_.OnLoad(
              now_ns_, id,
              {.outstanding_tokens = random_() % 50, .ready = !OneIn(4), .draining = OneIn(4)});
        }
        return;
      case 4:
        if (OneIn(4)) core_.SetLeaving(id, OneIn(2));
        return;
      case 5:
        return core_.Tick(now_ns_);
      case 6:
        if (!answers_.empty() && OneIn(4)) {
          core_.Cancel(
              {.request = std::next(answers_.begin(), random_() % answers_.size())->first});
        }
        return;
      default:
        return Advance(id, replica);
    }
  }

  void Submit() {
    TokenizedRequest request = Request(++last_);
    request.stop.max_tokens = kTokens;
    answers_[request.id].request = request;
    core_.Submit(now_ns_, 0, std::move(request), owner_);
  }

  void Attach(ReplicaId id, Replica& replica, std::uint64_t numerics) {
    replica.attached = true;
    replica.numerics = numerics;
    core_.OnLoad(now_ns_, id, {.ready = true});
    core_.OnAttached(now_ns_, id, Description("m", replica.numerics));
  }
  // Like RemoteEngine, gives accepted requests back and refuses the others.
  void Detach(ReplicaId id, Replica& replica) {
    replica.attached = false;
    core_.OnDetached(id);
    for (auto& [request, at] : std::exchange(replica.requests, {})) {
      std::vector<EngineEvent> events;
      if (at.accepted) {
        events.push_back(
            SequenceEnd{request, at.request.attempt, SequenceIndex(0), FinishReason::kMoved});
      }
      events.push_back(
          RequestEnd{request, at.request.attempt, absl::UnavailableError("gone"), 0, {}});
      core_.OnEvents(now_ns_, id, std::move(events));
    }
  }

  // One step of one request of the replica.
  void Advance(ReplicaId id, Replica& replica) {
    if (replica.requests.empty()) return;
    const auto at = std::next(replica.requests.begin(), random_() % replica.requests.size());
    auto& [request, one] = *at;
    const Attempt attempt = one.request.attempt;
    std::vector<EngineEvent> events;
    bool over = false;
    if (!one.accepted && OneIn(4) && attempt == Attempt(0)) {
      events.push_back(RequestEnd{request, attempt, absl::ResourceExhaustedError("full"), 5, {}});
      over = true;
    } else if (!std::exchange(one.accepted, true)) {
      events.push_back(Accepted{request, attempt, random_() % 20});
    } else if (one.cancelled || one.tokens == kTokens) {
      events.push_back(
          SequenceEnd{request, attempt, SequenceIndex(0),
                      one.cancelled ? FinishReason::kCancelled : FinishReason::kLength});
      events.push_back(RequestEnd{request, attempt, absl::OkStatus(), 0, {}});
      over = true;
    } else {
      events.push_back(TokenEvent{request, attempt, SequenceIndex(0), one.tokens++, {7}});
    }
    if (over) replica.requests.erase(at);
    core_.OnEvents(now_ns_, id, std::move(events));
  }

  void Perform() {
    while (true) {
      FleetCore::Actions actions = core_.Take();
      if (actions.commands.empty() && actions.events.empty()) return;
      for (auto& [id, command] : actions.commands) {
        Replica& replica = replicas_[id];
        ASSERT_TRUE(replica.attached) << "a command to a replica that is gone";
        if (const auto* cancel = std::get_if<CancelRequest>(&command)) {
          const auto at = replica.requests.find(cancel->request);
          if (at != replica.requests.end()) at->second.cancelled = true;
          continue;
        }
        auto& request = std::get<TokenizedRequest>(command);
        const std::uint32_t had = request.output_prefix.empty()
                                      ? 0
                                      : static_cast<std::uint32_t>(request.output_prefix[0].size());
        const RequestId request_id = request.id;
        if (had > 0) {
          ASSERT_EQ(replica.numerics, answers_.at(request_id).numerics);
        }
        const Attempt attempt = request.attempt;
        const auto [there, fresh] = replica.requests.emplace(
            request_id, AtReplica{.request = std::move(request), .tokens = had});
        if (fresh) continue;
        // Like RemoteEngine and Fleet, refuses a request that this replica still knows, because the
        // request was taken from it.
        ASSERT_TRUE(there->second.cancelled) << "twice in one replica";
        core_.OnEvents(now_ns_, id,
                       {RequestEnd{request_id, attempt, absl::UnavailableError("there"), 0, {}}});
      }
      for (auto& [sink, event] : actions.events) Receive(event);
    }
  }

  void Receive(const EngineEvent& event) {
    const auto [id, attempt] = EventKey(event);
    const auto at = answers_.find(id);
    ASSERT_NE(at, answers_.end()) << "after the end";
    Answer& answer = at->second;
    ASSERT_EQ(attempt, answer.request.attempt);
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      ASSERT_EQ(token->position, answer.tokens++);
      for (const auto& [replica_id, replica] : replicas_) {
        const auto there = replica.requests.find(id);
        if (there == replica.requests.end()) continue;
        if (there->second.request.attempt == attempt) answer.numerics = replica.numerics;
      }
    }
    if (const auto* end = std::get_if<SequenceEnd>(&event)) {
      answer.moved = end->reason == FinishReason::kMoved;
    }
    const auto* end = std::get_if<RequestEnd>(&event);
    if (end == nullptr) return;
    if (!answer.moved) {
      ++(end->status.ok() ? answered : refused);
      if (end->status.ok()) return static_cast<void>(answers_.erase(at));
      answers_.erase(at);
      return;
    }
    ++given_back;
    answer.moved = false;
    answer.request.attempt = Attempt(attempt.value() + 1);
    answer.request.output_prefix = {std::vector<TokenId>(answer.tokens, 7)};
    core_.Submit(now_ns_, 0, answer.request, owner_);
  }

  // Replicas of the first build come back. All requests that are left are answered, or have been
  // held too long.
  void WindDown() {
    for (auto& [id, replica] : replicas_) {
      if (replica.attached) Detach(id, replica);
      Perform();
    }
    for (auto& [id, replica] : replicas_) {
      Attach(id, replica, 1);
      core_.SetLeaving(id, false);
      Perform();
    }
    for (int i = 0; i < 20; ++i) {  // some of them refused
      Submit();
      Perform();
    }
    for (int i = 0; i < 100'000 && !answers_.empty(); ++i) {
      const ReplicaId id = SomeReplica();
      Advance(id, replicas_[id]);
      if (OneIn(10)) core_.Tick(now_ns_ += 10);
      Perform();
    }
    EXPECT_TRUE(answers_.empty());
    core_.Tick(now_ns_ + 20'000'000'000);
    EXPECT_FALSE(core_.waiting());
    EXPECT_TRUE(core_.Drained(std::nullopt));
    for (const auto& [id, replica] : replicas_) {
      core_.OnLoad(now_ns_, id, {.ready = true});
      EXPECT_EQ(core_.View(id).outstanding_tokens, 0u) << "what was sent is accounted for";
      core_.SetLeaving(id, true);
      EXPECT_TRUE(core_.Removable(id));
    }
  }

  std::mt19937_64 random_;
  FleetCore core_;
  std::int64_t now_ns_ = 0;
  std::uint64_t last_ = 0;
  std::map<ReplicaId, Replica> replicas_;
  std::map<RequestId, Answer> answers_;
  const std::shared_ptr<Owner> owner_ = std::make_shared<Owner>();
};

TEST(FleetCoreStorm, EveryRequestEndsOnceAndNothingIsForgotten) {
  std::uint64_t answered = 0, refused = 0, given_back = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Storm storm(seed);
    storm.Run();
    if (::testing::Test::HasFatalFailure() || ::testing::Test::HasFailure()) return;
    answered += storm.answered;
    refused += storm.refused;
    given_back += storm.given_back;
  }
  EXPECT_GT(answered, 10'000u);
  EXPECT_GT(refused, 100u);
  EXPECT_GT(given_back, 1'000u);
}

}  // namespace
}  // namespace flotilla::router
