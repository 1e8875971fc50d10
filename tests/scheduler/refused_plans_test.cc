// A worker group refuses plans again and again. The request whose operations it refuses is found
// and fails, and all others are served.
#include "scheduler/core/refused_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kMillisecond = 1'000'000;

ExecutorDescription RefusedPlansGroup() {
  ExecutorDescription group;
  group.vocab_size = 1000;
  group.max_context = 2048;
  group.groups = {KvGroup{.tokens_per_block = 16}};
  group.block_count = 1000;
  group.max_sequences = 64;
  group.max_step_tokens = 256;
  group.prefill_ns_per_token = 1000;
  group.decode_ns_per_step = 1000;
  return group;
}

class RefusedPlansTest : public ::testing::Test {
 protected:
  RefusedPlansTest() : harness({}, RefusedPlansGroup()) {}

  // Whether the plan computes rows of the request's prompt at or after `position`.
  bool Computes(const StepPlan& plan, std::uint64_t request, std::uint32_t position) {
    for (const auto& open : CoreHarness::OpsOf<OpenSequence>(plan)) {
      length[open.sequence] = {open.request.counter, open.cached_tokens};
    }
    bool computes = false;
    for (const auto& run : CoreHarness::OpsOf<flotilla::Run>(plan)) {
      auto& [id, positions] = length[run.sequence];
      positions += run.count;
      computes |= id == request && positions > position;
    }
    return computes;
  }

  // Makes one plan and answers or refuses it; at a pause it goes on to its end. Returns whether
  // anything is left to do.
  bool Step(std::uint64_t culprit, std::uint32_t position) {
    PlanOutcome outcome = harness.core.Plan(harness.now_ns);
    harness.TakeEvents();
    EXPECT_EQ(harness.core.CheckInvariants(), absl::OkStatus());
    if (!outcome.plan.has_value()) {
      if (outcome.stall != StallReason::kHeldBack) return false;
      ++pauses;
      harness.now_ns = *outcome.wake_ns;
      return true;
    }
    const flotilla::Step step = outcome.plan->step;
    if (!Computes(*outcome.plan, culprit, position)) {
      harness.plans.push_back(*std::move(outcome.plan));
      harness.Answer();
      return true;
    }
    ++refusals;
    harness.core.PlanRefused(harness.now_ns, harness.epoch(), step, "handle 7 is unknown");
    harness.TakeEvents();
    length.clear();
    harness.Restart();
    return true;
  }
  void Run(std::uint64_t culprit, std::uint32_t position = 0) {
    int steps = 0;
    while (Step(culprit, position)) ASSERT_LT(++steps, 5000);
  }

  CoreHarness harness;
  std::map<SequenceHandle, std::pair<std::uint64_t, std::uint32_t>> length;
  int refusals = 0, pauses = 0;
};

TEST_F(RefusedPlansTest, OneOfManyIsFoundByBisectionAndAllOthersAreServed) {
  for (std::uint64_t id = 1; id <= 32; ++id) harness.Submit(id, 8, 12);
  Run(/*culprit=*/21);
  EXPECT_LE(refusals, 2 + 5);  // 2 + log2(32)
  for (std::uint64_t id = 1; id <= 32; ++id) {
    SCOPED_TRACE(id);
    if (id == 21) {
      EXPECT_TRUE(absl::IsInternal(harness.EndOf(id)->status)) << harness.EndOf(id)->status;
      EXPECT_THAT(harness.EndOf(id)->status.message(), HasSubstr("handle 7 is unknown"));
    } else {
      EXPECT_TRUE(harness.EndOf(id)->status.ok()) << harness.EndOf(id)->status;
      EXPECT_EQ(harness.TokensOf(id), 12u);
    }
  }
  const CoreCounters counters = harness.core.Snapshot().counters;
  EXPECT_EQ(counters.refused_failures, 1u);
  EXPECT_EQ(counters.refused_given_back, 0u);
}

TEST_F(RefusedPlansTest, ARequestThatIsAloneFailsAtTheSecondRefusalAfterAPause) {
  harness.Submit(1, 8, 12);
  Run(/*culprit=*/1);
  EXPECT_EQ(refusals, 2);
  EXPECT_EQ(pauses, 1);
  EXPECT_GE(harness.now_ns, 100 * kMillisecond);
  EXPECT_TRUE(absl::IsInternal(harness.EndOf(1)->status));
}

TEST_F(RefusedPlansTest, AChunkInTheMiddleOfALongPromptIsFoundToo) {
  for (std::uint64_t id = 1; id <= 6; ++id) harness.Submit(id, 600, 4);
  Run(/*culprit=*/4, /*position=*/500);
  EXPECT_LE(refusals, 5);
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ(harness.EndOf(id)->status.ok(), id != 4) << harness.EndOf(id)->status;
  }
}

TEST_F(RefusedPlansTest, OthersStartWhileTheCandidatesPause) {
  for (std::uint64_t id = 1; id <= 24; ++id) harness.Submit(id, 8, 12);
  while (refusals == 0) ASSERT_TRUE(Step(/*culprit=*/3, 0));
  const std::int64_t refused_ns = harness.now_ns;
  for (std::uint64_t id = 101; id <= 140; ++id) harness.Submit(id, 8, 2);
  for (int plan = 0; plan < 8 && harness.core.Snapshot().counters.length < 40; ++plan) {
    ASSERT_TRUE(Step(/*culprit=*/3, 0));
  }
  EXPECT_EQ(harness.now_ns, refused_ns);
  for (std::uint64_t id = 101; id <= 140; ++id) EXPECT_EQ(harness.TokensOf(id), 2u) << id;
  Run(/*culprit=*/3);
  EXPECT_TRUE(absl::IsInternal(harness.EndOf(3)->status));
}

TEST_F(RefusedPlansTest, ACancelledCandidateHoldsNobodyBack) {
  for (std::uint64_t id = 1; id <= 4; ++id) harness.Submit(id, 8, 12);
  while (refusals == 0) ASSERT_TRUE(Step(/*culprit=*/1, 0));
  harness.core.Cancel({.request = {1, 1}, .sequence = {}, .keep_tokens = 0});
  Run(/*culprit=*/1);
  EXPECT_EQ(refusals, 1);
  for (std::uint64_t id = 2; id <= 4; ++id) EXPECT_EQ(harness.TokensOf(id), 12u);
}

RequestId Id(std::uint64_t number) { return {1, number}; }

// Digests that drift have no cause among the requests: each time others are in the plan.
TEST(RefusedPlans, WithoutACauseThePausesGrowAndOnlyTheLastCandidatesAreGivenBack) {
  RefusedPlans plans;
  std::int64_t now_ns = 0;
  std::vector<std::int64_t> pauses_ms;
  for (std::uint64_t round = 1; round < RefusedPlans::kMostTries; ++round) {
    const auto outcome = plans.OnRefused(now_ns, {{.request = Id(round), .cleared_at = 5}});
    EXPECT_THAT(outcome.failed, IsEmpty());
    EXPECT_THAT(outcome.given_back, IsEmpty());
    plans.Update(now_ns, [](const RequestId&) { return 0u; });
    EXPECT_FALSE(plans.MayStart(Id(round)));
    EXPECT_TRUE(plans.MayStart(Id(1000)));
    pauses_ms.push_back((*plans.wake_ns() - now_ns) / kMillisecond);
    now_ns = *plans.wake_ns();
    plans.Update(now_ns, [](const RequestId&) { return 0u; });
    EXPECT_TRUE(plans.MayStart(Id(round)));
    EXPECT_FALSE(plans.wake_ns().has_value());
    plans.Update(now_ns, [](const RequestId&) { return 5u; });  // it gets past that point
    EXPECT_EQ(plans.candidates(), 0u);
  }
  EXPECT_THAT(pauses_ms, ElementsAre(100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000));
  const auto last = plans.OnRefused(now_ns, {{.request = Id(77)}, {.request = Id(78)}});
  EXPECT_THAT(last.given_back, ElementsAre(Id(77), Id(78)));
  EXPECT_EQ(plans.candidates(), 0u);
}

// Candidates that were cleared are in the way again while others are tried: no cause is found.
TEST(RefusedPlans, ClearedCandidatesThatAreInTheWayAgainMakeThePauseLonger) {
  RefusedPlans plans;
  const auto first_has_passed = [](const RequestId& id) { return id == Id(1) ? 9u : 0u; };
  plans.OnRefused(0, {{.request = Id(1), .cleared_at = 5}, {.request = Id(2), .cleared_at = 5}});
  const std::int64_t tried_ns = RefusedPlans::kFirstPauseNs;
  plans.Update(tried_ns, first_has_passed);
  EXPECT_TRUE(plans.MayStart(Id(1)));
  EXPECT_TRUE(plans.MayStart(Id(2)));
  plans.OnRefused(tried_ns, {{.request = Id(3), .cleared_at = 5}});  // a cause of its own
  EXPECT_TRUE(plans.MayStart(Id(2)));
  EXPECT_FALSE(plans.MayStart(Id(3)));
  plans.OnRefused(tried_ns, {{.request = Id(1), .cleared_at = 15}});
  EXPECT_FALSE(plans.MayStart(Id(1)));
  EXPECT_FALSE(plans.MayStart(Id(2)));
  EXPECT_EQ(plans.wake_ns(), tried_ns + 2 * RefusedPlans::kFirstPauseNs);
}

TEST(RefusedPlans, AfterAQuietMinutePausesAreShortAgain) {
  RefusedPlans plans;
  const auto past = [](const RequestId&) { return 9u; };
  for (int round = 0; round < 5; ++round) {
    plans.OnRefused(0, {{.request = Id(1), .cleared_at = 5}});
    plans.Update(0, past);
  }
  const std::int64_t later_ns = RefusedPlans::kQuietNs + 1;
  plans.OnRefused(later_ns, {{.request = Id(1), .cleared_at = 15}});
  plans.Update(later_ns, past);
  EXPECT_EQ(plans.wake_ns(), later_ns + RefusedPlans::kFirstPauseNs);
}

TEST(RefusedPlans, SeveralCausesAreFoundOneAfterAnother) {
  RefusedPlans plans;
  const auto none = [](const RequestId&) { return 0u; };
  plans.OnRefused(0, {{.request = Id(1), .cleared_at = 5}});
  plans.OnRefused(1, {{.request = Id(2), .cleared_at = 5}});  // while the first one pauses
  plans.Update(RefusedPlans::kFirstPauseNs, none);
  EXPECT_TRUE(plans.MayStart(Id(1)));
  EXPECT_FALSE(plans.MayStart(Id(2)));
  auto outcome = plans.OnRefused(RefusedPlans::kFirstPauseNs, {{.request = Id(1)}});
  EXPECT_THAT(outcome.failed, ElementsAre(Id(1)));
  outcome = plans.OnRefused(2 * RefusedPlans::kFirstPauseNs, {{.request = Id(2)}});
  EXPECT_THAT(outcome.failed, IsEmpty());  // its first try
  outcome = plans.OnRefused(3 * RefusedPlans::kFirstPauseNs, {{.request = Id(2)}});
  EXPECT_THAT(outcome.failed, ElementsAre(Id(2)));
  EXPECT_EQ(plans.candidates(), 0u);
}

// Those that may try may be behind others by the policy, or find no place.
TEST(RefusedPlans, CandidatesThatGetOnKeepTheirTurn) {
  RefusedPlans plans;
  plans.OnRefused(0, {{.request = Id(1), .cleared_at = 1000}, {.request = Id(2), .cleared_at = 5}});
  std::uint32_t positions = 0;
  for (std::int64_t now_ns = 0; now_ns < 10 * RefusedPlans::kTurnNs;
       now_ns += RefusedPlans::kTurnNs / 2) {
    ++positions;
    plans.Update(now_ns, [&](const RequestId& id) {
      return std::optional<std::uint32_t>(id == Id(1) ? positions : 0);
    });
    EXPECT_FALSE(plans.MayStart(Id(2)));
  }
}

// One that was refused alone, and finds no place, is not confirmed by the refusal of another.
TEST(RefusedPlans, ATurnThatChangesConfirmsNothing) {
  RefusedPlans plans;
  const auto nobody_gets_on = [](const RequestId&) { return std::optional<std::uint32_t>(0); };
  plans.OnRefused(0, {{.request = Id(1), .cleared_at = 5}});
  plans.OnRefused(1, {{.request = Id(1), .cleared_at = 5}, {.request = Id(2), .cleared_at = 5}});
  const std::int64_t later_ns = RefusedPlans::kLongestPauseNs + RefusedPlans::kTurnNs;
  plans.Update(later_ns, nobody_gets_on);
  EXPECT_TRUE(plans.MayStart(Id(2)));
  EXPECT_THAT(plans.OnRefused(later_ns, {{.request = Id(2), .cleared_at = 5}}).failed, IsEmpty());
}

TEST(RefusedPlans, CandidatesThatDoNotGetOnGiveTheirTurnToOthers) {
  RefusedPlans plans;
  const auto nobody_gets_on = [](const RequestId&) { return std::optional<std::uint32_t>(0); };
  std::int64_t now_ns = 0;
  plans.OnRefused(now_ns, {{.request = Id(1), .cleared_at = 5},
                           {.request = Id(2), .cleared_at = 5},
                           {.request = Id(3), .cleared_at = 5},
                           {.request = Id(4), .cleared_at = 5}});
  const auto may_start = [&](std::int64_t after_ns) {
    now_ns += after_ns;
    plans.Update(now_ns, nobody_gets_on);
    std::vector<std::uint64_t> ids;
    for (const std::uint64_t counter : {1, 2, 3, 4}) {
      if (plans.MayStart(Id(counter))) ids.push_back(counter);
    }
    return ids;
  };
  EXPECT_THAT(may_start(RefusedPlans::kFirstPauseNs), ElementsAre(1, 2));
  EXPECT_THAT(may_start(RefusedPlans::kTurnNs - 1), ElementsAre(1, 2));
  EXPECT_THAT(may_start(1), ElementsAre(3, 4));
  EXPECT_THAT(may_start(RefusedPlans::kTurnNs), ElementsAre(1, 2));
  // The half that may try is the one that is refused.
  plans.OnRefused(now_ns,
                  {{.request = Id(1), .cleared_at = 5}, {.request = Id(2), .cleared_at = 5}});
  EXPECT_EQ(plans.tried().size(), 1u);
}

// One request is alone among the candidates and is refused beside others. Only a refusal without
// those shows that it is the cause.
TEST(RefusedPlans, WhoIsRefusedBesideOthersIsTriedWithoutThem) {
  RefusedPlans plans;
  const auto none = [](const RequestId&) { return 0u; };
  plans.OnRefused(0, {{.request = Id(1), .cleared_at = 5}});
  auto outcome = plans.OnRefused(
      1, {{.request = Id(1), .cleared_at = 5}, {.request = Id(2), .cleared_at = 5}});
  EXPECT_THAT(outcome.failed, IsEmpty());
  plans.Update(RefusedPlans::kLongestPauseNs, none);
  EXPECT_TRUE(plans.MayStart(Id(1)));
  EXPECT_FALSE(plans.MayStart(Id(2)));
  outcome = plans.OnRefused(RefusedPlans::kLongestPauseNs, {{.request = Id(1), .cleared_at = 5}});
  EXPECT_THAT(outcome.failed, ElementsAre(Id(1)));
}

}  // namespace
}  // namespace flotilla::scheduler
