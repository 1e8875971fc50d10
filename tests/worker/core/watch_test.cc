// Tests which groups are judged healthy, from times alone.
#include "worker/core/watch.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "worker/core/merge_descriptions.h"

namespace flotilla::worker {
namespace {

constexpr std::int64_t kMs = 1'000'000, kSecond = 1000 * kMs;
using State = MemberSample::State;

class WatchTest : public ::testing::Test {
 protected:
  Verdict Judge(std::int64_t now_ns, std::optional<WorkUnderway> work = {}) {
    return watch_.Judge(now_ns, launcher_, ranks_, work);
  }

  GroupWatch watch_{WatchOptions{}};
  MemberSample launcher_;
  std::vector<MemberSample> ranks_ = std::vector<MemberSample>(3);
};

TEST_F(WatchTest, AMemberThatIsGoneOrStopped) {
  EXPECT_EQ(Judge(0).fault, std::nullopt);
  ranks_[1].state = State::kStopped;
  EXPECT_EQ(Judge(100 * kMs), (Verdict{.fault = Fault::kStopped, .member = 1}));
  launcher_.state = State::kStopped;
  EXPECT_EQ(Judge(200 * kMs), (Verdict{.fault = Fault::kStopped, .member = Verdict::kLauncher}));
  ranks_[2].state = State::kGone;
  EXPECT_EQ(Judge(300 * kMs), (Verdict{.fault = Fault::kDied, .member = 2}));
  launcher_.state = State::kGone;
  EXPECT_EQ(Judge(400 * kMs), (Verdict{.fault = Fault::kDied, .member = Verdict::kLauncher}));
}

TEST_F(WatchTest, AHeartbeatOfOneSecondAgo) {
  ranks_[2].heartbeat_ns = 5 * kSecond;
  EXPECT_EQ(Judge(6 * kSecond).fault, std::nullopt);
  EXPECT_EQ(Judge(6 * kSecond + 1),
            (Verdict{.fault = Fault::kSilent, .member = 2, .age_ns = kSecond + 1}));
  ranks_[2].heartbeat_ns.reset();  // none is expected
  EXPECT_EQ(Judge(6 * kSecond + 2).fault, std::nullopt);
}

TEST_F(WatchTest, WorkThatTakesTooLongNamesWhoIsBehind) {
  const WorkUnderway work{.since_ns = kSecond, .limit_ns = 2 * kSecond};
  for (std::int64_t now = 0; now <= 3 * kSecond; now += 100 * kMs) {
    ASSERT_EQ(Judge(now, work).fault, std::nullopt);
  }
  EXPECT_EQ(Judge(3 * kSecond + 1, work).member, Verdict::kLauncher);  // no rank is behind
  ranks_[1].behind = true;
  EXPECT_EQ(Judge(3 * kSecond + 2, work),
            (Verdict{.fault = Fault::kStuck, .member = 1, .age_ns = 2 * kSecond + 2}));
}

// A rank may load as long as it likes, if it gets further.
TEST_F(WatchTest, ARankThatGetsNoFurtherWithLoadingIsStalledAfterTenSeconds) {
  ranks_[1].moved_ns = 0;
  std::int64_t now = 0;
  for (; now <= 3600 * kSecond; now += 100 * kMs) {  // slow, and never missed
    if (now % (9 * kSecond) == 0) ranks_[1].moved_ns = now;
    ASSERT_EQ(Judge(now).fault, std::nullopt) << now;
  }
  for (; now <= *ranks_[1].moved_ns + 10 * kSecond; now += 100 * kMs) {
    ASSERT_EQ(Judge(now).fault, std::nullopt) << now;
  }
  EXPECT_EQ(
      Judge(now),
      (Verdict{.fault = Fault::kStalled, .member = 1, .age_ns = now - ranks_[1].moved_ns.value()}));
}

// A rank that is done with its own part waits for the others, and is not missed for that.
TEST_F(WatchTest, ARankThatWaitsForOthersIsStalledOnlyWithThem) {
  ranks_[0].moved_ns = 0;
  ranks_[0].waits = true;
  ranks_[2].moved_ns = 0;
  std::int64_t now = 0;
  for (; now <= 60 * kSecond; now += 100 * kMs) {
    ranks_[2].moved_ns = now;
    ASSERT_EQ(Judge(now).fault, std::nullopt) << now;
  }
  for (; now <= 70 * kSecond; now += 100 * kMs) ASSERT_EQ(Judge(now).fault, std::nullopt) << now;
  ranks_[2].moved_ns.reset();  // it has loaded; rank 0 waits for what does not come
  EXPECT_EQ(Judge(now).member, 0);
  EXPECT_EQ(Judge(now + 1).fault, Fault::kStalled);
}

TEST_F(WatchTest, AnAgentThatWasLateItselfBeginsAgain) {
  const WorkUnderway work{.since_ns = 0, .limit_ns = 2 * kSecond};
  ranks_[0].heartbeat_ns = 0;
  ranks_[0].behind = true;
  EXPECT_EQ(Judge(100 * kMs, work).fault, std::nullopt);
  ranks_[1].state = State::kStopped;  // with the agent, and about to go on like it
  EXPECT_EQ(Judge(10 * kSecond, work).fault, std::nullopt);
  ranks_[1].state = State::kAlive;
  for (std::int64_t ms = 100; ms <= 1000; ms += 100) {
    ASSERT_EQ(Judge(10 * kSecond + ms * kMs, work).fault, std::nullopt) << ms;
  }
  EXPECT_EQ(Judge(11 * kSecond + 100 * kMs, work).fault, Fault::kSilent);
  ranks_[0].heartbeat_ns = 20 * kSecond;
  for (std::int64_t ms = 1200; ms <= 2000; ms += 100) {
    ASSERT_EQ(Judge(10 * kSecond + ms * kMs, work).fault, std::nullopt) << ms;
  }
  EXPECT_EQ(Judge(12 * kSecond + 100 * kMs, work).fault, Fault::kStuck);
  // A death counts even if the agent was late.
  ranks_[1].state = State::kGone;
  EXPECT_EQ(Judge(60 * kSecond, work).fault, Fault::kDied);
}

TEST_F(WatchTest, ALoadBeginsAgainToo) {
  ranks_[1].moved_ns = 0;
  EXPECT_EQ(Judge(0).fault, std::nullopt);
  EXPECT_EQ(Judge(60 * kSecond).fault, std::nullopt);  // the agent was late
  std::int64_t now = 60 * kSecond;
  for (; now <= 70 * kSecond; now += 100 * kMs) ASSERT_EQ(Judge(now).fault, std::nullopt) << now;
  EXPECT_EQ(Judge(now), (Verdict{.fault = Fault::kStalled, .member = 1, .age_ns = 10'100 * kMs}));
}

TEST(Watch, WithoutALimitALoadIsNeverStalled) {
  GroupWatch watch{{.load_stall_ns = 0}};
  const std::vector<MemberSample> ranks = {{.moved_ns = 0}};
  for (std::int64_t now = 0; now <= 60 * kSecond; now += 100 * kMs) {
    ASSERT_EQ(watch.Judge(now, {}, ranks, std::nullopt).fault, std::nullopt) << now;
  }
}

TEST_F(WatchTest, AFewHundredMillisecondsLateIsNotLate) {
  ranks_[0].heartbeat_ns = 0;
  Judge(700 * kMs);
  EXPECT_EQ(Judge(1100 * kMs).fault, Fault::kSilent);
  EXPECT_EQ(Judge(1501 * kMs).fault, std::nullopt);  // 401 ms after the last
}

// Ranks whose heartbeat comes within a second and whose steps keep their time are never judged
// faulty, even if the agent is sometimes late. A rank that falls silent or gets stuck is noticed
// within the limit, plus two periods, plus the time that the agent was late.
TEST(WatchSeeds, NoFalseAlarmAndNoneMissed) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::int64_t bound) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
    };
    GroupWatch watch{WatchOptions{}};
    std::vector<MemberSample> ranks(1 + static_cast<std::size_t>(below(4)));
    const std::size_t sick =
        static_cast<std::size_t>(below(static_cast<std::int64_t>(ranks.size())));
    const bool silent = below(2) == 0;
    const std::int64_t falls_ill = kSecond + below(20 * kSecond);
    const std::int64_t limit = silent ? kSecond : StepLimitNs(below(3 * kSecond));
    std::int64_t step_since = 0, last_late = 0, asleep_until = 0;
    for (MemberSample& rank : ranks) rank.heartbeat_ns = 0;
    std::int64_t now = 0;
    Verdict verdict = watch.Judge(now, {}, ranks, std::nullopt);
    while (verdict.fault == std::nullopt) {
      // Mostly in time, now and then later than anything else may be.
      const bool late = below(30) == 0;
      now += late ? 500 * kMs + below(5 * kSecond) : 100 * kMs + below(50 * kMs);
      if (late) {
        last_late = now;
        // Whatever stopped the agent stopped the ranks too, and they may be slow to wake.
        if (below(2) == 0) asleep_until = now + below(700 * kMs);
      }
      const bool ill = now >= falls_ill;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const bool beats = now >= asleep_until && !(ill && silent && i == sick);
        if (beats) ranks[i].heartbeat_ns = now - below(900 * kMs);
        ranks[i].behind = i == sick;
      }
      if (now >= asleep_until && !(ill && !silent)) {
        step_since = std::max(step_since, now - below(limit - 200 * kMs));
      }
      verdict =
          watch.Judge(now, {}, ranks, WorkUnderway{.since_ns = step_since, .limit_ns = limit});
      ASSERT_TRUE(ill || verdict.fault == std::nullopt) << now;
      ASSERT_LE(now, std::max(falls_ill, last_late) + limit + 300 * kMs);
    }
    EXPECT_EQ(verdict.member, static_cast<int>(sick));
    EXPECT_EQ(verdict.fault, silent ? Fault::kSilent : Fault::kStuck);
  }
}

TEST(Limits, OfStepsAndRestarts) {
  EXPECT_NEAR(static_cast<double>(StepLimitNs(0)), 2e9, 10);
  EXPECT_NEAR(static_cast<double>(StepLimitNs(-5)), 2e9, 10);
  EXPECT_EQ(StepLimitNs(kSecond), 3 * kSecond);
  EXPECT_GT(StepLimitNs(INT64_MAX), INT64_MAX / 2);
  const std::int64_t seconds[] = {0, 0, 1, 2, 4, 8, 16, 30, 30};
  for (int failures = 0; failures < 9; ++failures) {
    EXPECT_EQ(RestartDelayNs(failures), seconds[failures] * kSecond) << failures;
  }
  EXPECT_EQ(RestartDelayNs(1'000'000), 30 * kSecond);
}

ExecutorDescription Description() {
  ExecutorDescription one{.model_id = "m", .vocab_size = 10, .block_count = 100};
  one.groups = {{.tokens_per_block = 16, .bytes_per_block = 1000}};
  one.tiers = {{.block_count = 50, .out_ns_per_block = 5, .in_ns_per_block = 6}};
  one.prefill_ns_per_token = 3;
  one.decode_ns_per_step = 4;
  return one;
}

TEST(MergeDescriptions, TheLeastCapacityAndTheSlowestRates) {
  const ExecutorDescription a = Description();
  ExecutorDescription b = a;
  b.block_count = 90;
  b.groups[0].bytes_per_block = 1200;
  b.tiers[0] = {.block_count = 40, .out_ns_per_block = 7, .in_ns_per_block = 2};
  b.decode_ns_per_step = 9;
  ExecutorDescription expected = b;
  expected.tiers[0].in_ns_per_block = 6;
  for (const auto& both : {std::vector{a, b}, std::vector{b, a}}) {
    const auto merged = MergeDescriptions(both);
    ASSERT_TRUE(merged.ok()) << merged.status();
    EXPECT_EQ(*merged, expected);
  }
}

TEST(MergeDescriptions, RanksOfDifferentModelsAreRefusedByName) {
  const auto differ = [](const auto& change) {
    ExecutorDescription b = Description();
    change(b);
    const auto merged = MergeDescriptions({Description(), b});
    EXPECT_TRUE(absl::IsInvalidArgument(merged.status()));
    return std::string(merged.status().message());
  };
  EXPECT_EQ(differ([](auto& b) { b.vocab_size = 1; }), "ranks 0 and 1 differ in vocab_size");
  EXPECT_EQ(differ([](auto& b) { b.numerics_id = 1; }), "ranks 0 and 1 differ in numerics_id");
  EXPECT_EQ(differ([](auto& b) { b.groups.clear(); }), "ranks 0 and 1 differ in groups");
  EXPECT_EQ(differ([](auto& b) { b.tiers.clear(); }), "ranks 0 and 1 differ in tiers");
  EXPECT_EQ(differ([](auto& b) { b.tiers[0].kind = KvTier::Kind::kDisk; }),
            "ranks 0 and 1 differ in tiers");
}

}  // namespace
}  // namespace flotilla::worker
