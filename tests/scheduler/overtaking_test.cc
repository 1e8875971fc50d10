// Who takes places and memory from others, and how often those that wait for them are overtaken.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <tuple>
#include <vector>

#include "tests/scheduler/waiting_groups.h"

namespace flotilla::scheduler {
namespace {

// A request of a high class takes the only place of one of a low class, which goes on later with
// the tokens that it has.
TEST(Waiting, AHigherClassTakesAPlaceFromALowerOne) {
  CoreHarness harness({.max_seqs = 1}, WaitingGroup());
  TokenizedRequest low = CoreHarness::Request(1, 20, 100), high = CoreHarness::Request(2, 20, 5);
  low.priority = -1;
  harness.core.Submit(0, low);
  PlansToFirstToken(harness, 1);
  harness.core.Submit(0, high);
  EXPECT_LE(PlansToFirstToken(harness, 2), 3);
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 100u);
  EXPECT_EQ(harness.EndOf(1)->usage.preemptions, 1u);
  EXPECT_EQ(harness.EndOf(2)->usage.preemptions, 0u);
}

// Equal classes wait for each other; and of several lower ones only as many give way as must.
TEST(Waiting, AHigherClassTakesNoMoreBlocksThanItNeeds) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0}, WaitingGroup(41));
  for (std::uint64_t id = 1; id <= 4; ++id) {  // ten blocks each: all of the pool
    TokenizedRequest low = DistinctRequest(id, 130, 30);
    low.priority = -1;
    harness.core.Submit(0, low);
  }
  PlansToFirstToken(harness, 4);
  TokenizedRequest equal = DistinctRequest(5, 100, 5), high = DistinctRequest(6, 100, 5);
  equal.priority = -1;
  harness.core.Submit(0, equal);
  harness.Plan();
  harness.Answer();
  EXPECT_EQ(harness.core.Snapshot().counters.preemptions, 0u);
  harness.core.Submit(0, high);
  EXPECT_LE(PlansToFirstToken(harness, 6), 3);
  EXPECT_EQ(harness.core.Snapshot().counters.preemptions, 1u);
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(harness.TokensOf(id), 30u);
}

// Under fair share the last request in order may be of a high class. One of a lower class gives way
// all the same, though not to a tenant whose turn comes later.
TEST(Waiting, UnderFairShareTheLowerClassGivesWay) {
  CoreHarness harness({.max_seqs = 2, .fair_share = true}, WaitingGroup());
  const auto submit = [&](std::uint64_t id, const char* tenant, std::int32_t priority) {
    TokenizedRequest request = DistinctRequest(id, 20, 100);
    request.tenant = tenant;
    request.priority = priority;
    harness.core.Submit(0, request);
  };
  submit(1, "a", -1);
  PlansToFirstToken(harness, 1);
  submit(2, "b", 5);
  harness.Submit(3, 400, 1);  // charges nobody but its own tenant
  PlansToFirstToken(harness, 2);
  submit(4, "c", 5);
  EXPECT_LE(PlansToFirstToken(harness, 4), 4);
  harness.RunAll();
  EXPECT_EQ(harness.EndOf(1)->usage.preemptions, 1u);
  EXPECT_EQ(harness.EndOf(2)->usage.preemptions, 0u);
  for (const std::uint64_t id : {1, 2, 4}) EXPECT_EQ(harness.TokensOf(id), 100u);
}

// A tenant that was served much has a request of a high class. Those of a low class stay where they
// are, because they are of a tenant whose turn is first.
TEST(Waiting, UnderFairShareATenantThatWasServedLessGivesNothing) {
  CoreHarness harness({.max_seqs = 2, .fair_share = true}, WaitingGroup());
  const auto submit = [&](std::uint64_t id, const char* tenant, std::int32_t priority,
                          std::uint32_t prompt, std::uint32_t max_tokens) {
    TokenizedRequest request = DistinctRequest(id, prompt, max_tokens);
    request.tenant = tenant;
    request.priority = priority;
    harness.core.Submit(0, request);
  };
  submit(2, "light", -1, 20, 200);
  PlansToFirstToken(harness, 2);
  submit(1, "heavy", 5, 1000, 1);
  PlansToFirstToken(harness, 1);
  submit(3, "light", -1, 20, 40);
  PlansToFirstToken(harness, 3);
  submit(4, "heavy", 5, 20, 5);
  PlansToFirstToken(harness, 4);
  EXPECT_EQ(harness.TokensOf(3), 40u);
  harness.RunAll();
  for (const std::uint64_t id : {2, 3}) EXPECT_EQ(harness.EndOf(id)->usage.preemptions, 0u) << id;
  EXPECT_EQ(harness.TokensOf(2), 200u);
  EXPECT_EQ(harness.TokensOf(4), 5u);
}

// What fits may start before requests that wait for memory, also behind the second tenant's head.
TEST(Waiting, UnderFairShareAHeadThatWaitsForMemoryHidesNobodyOfItsTenant) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0, .fair_share = true},
                      WaitingGroup(101));
  harness.core.Submit(0, DistinctRequest(1, 700, 400));  // 55 blocks are free
  PlansToFirstToken(harness, 1);
  for (const auto& [id, tenant, prompt] :
       {std::tuple(2, "a", 1000u), std::tuple(3, "b", 1000u), std::tuple(4, "b", 300u)}) {
    TokenizedRequest request = DistinctRequest(static_cast<std::uint64_t>(id), prompt, 1);
    request.tenant = tenant;
    harness.core.Submit(0, request);
  }
  EXPECT_LE(PlansToFirstToken(harness, 4), 4);
  EXPECT_EQ(harness.TokensOf(2) + harness.TokensOf(3), 0u);
  harness.RunAll();
}

// When blocks run out, the tenant that was served most gives its blocks, although its request was
// there first.
TEST(Waiting, UnderFairShareTheVictimIsOfTheTenantThatWasServedMost) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0, .fair_share = true},
                      WaitingGroup(41));
  TokenizedRequest heavy = DistinctRequest(1, 300, 100), light = DistinctRequest(2, 200, 200);
  heavy.tenant = "heavy";
  light.tenant = "light";
  harness.core.Submit(0, heavy);
  harness.core.Submit(0, light);
  harness.RunAll();
  EXPECT_GE(harness.EndOf(1)->usage.preemptions, 1u);
  EXPECT_EQ(harness.EndOf(2)->usage.preemptions, 0u);
  EXPECT_EQ(harness.TokensOf(1), 100u);
}

// Requests of a high class that keep coming take the place of a low one twice. Then they wait for
// it.
TEST(Waiting, ProtectionHoldsAgainstEveryPriority) {
  CoreHarness harness({.max_seqs = 1}, WaitingGroup());
  TokenizedRequest low = CoreHarness::Request(1, 20, 200);
  low.priority = -100;
  harness.core.Submit(0, low);
  for (std::uint64_t id = 2; !harness.EndOf(1).has_value(); ++id) {
    TokenizedRequest high = CoreHarness::Request(id, 20, 3);
    high.priority = 100;
    harness.core.Submit(0, high);
    for (int step = 0; step < 10 && harness.Plan() == StallReason::kNone; ++step) harness.Answer();
    ASSERT_LT(id, 100u);
  }
  EXPECT_EQ(harness.EndOf(1)->usage.preemptions, 2u);
  EXPECT_EQ(harness.TokensOf(1), 200u);
  harness.RunAll();
}

// Short requests that never end overtake a head that waits for memory by 32 steps' rows at most.
TEST(Waiting, AHeadThatWaitsForMemoryIsOvertakenByAStatedNumberOfRows) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0}, WaitingGroup(101));
  harness.core.Submit(0, DistinctRequest(1, 700, 880));  // 99 blocks in the end
  PlansToFirstToken(harness, 1);
  harness.core.Submit(0, DistinctRequest(2, 1000, 1));  // 63 blocks; 55 are free at first
  std::uint64_t id = 2, rows = 0;
  for (bool started = false; !started;) {
    harness.core.Submit(0, DistinctRequest(++id, 60, 1));
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      started |= open.request.counter == 2;
      if (!started) rows += 60;
    }
    harness.Answer();
    ASSERT_LT(id, 2000u);
  }
  EXPECT_GT(rows, 1000u);
  EXPECT_LE(rows, 32u * 256);
  harness.RunAll();
}

// Requests 2 to `last` wait for memory, and three short ones come before each plan. A plan counts
// for the first 32 that wait, so those behind them are overtaken by as many rows again for each 32
// that wait before them, and not more. Returns by how many rows the last one was.
std::uint64_t ServeBehindShortOnes(std::uint64_t last) {
  CoreHarness harness(
      {.max_queued_tokens = 1 << 21, .watermark_blocks = 0, .expected_output_permille = 0},
      WaitingGroup(101));
  harness.core.Submit(0, DistinctRequest(1, 700, 880));  // 99 blocks in the end
  PlansToFirstToken(harness, 1);
  // 63 blocks each, of which 55 are free at first: they start one after the other.
  for (std::uint64_t id = 2; id <= last; ++id) {
    harness.core.Submit(0, DistinctRequest(id, 1000, 9));
  }
  std::uint64_t id = last, rows = 0;
  for (std::uint64_t started = 1; started < last && id < 20'000;) {
    for (int i = 0; i < 3; ++i) harness.core.Submit(0, DistinctRequest(++id, 60, 1));
    EXPECT_EQ(harness.Plan(), StallReason::kNone);
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      if (open.request.counter > last) {
        rows += 60;
      } else {
        started = open.request.counter;
        EXPECT_LE(rows, (1 + (started - 2) / 32) * 32 * 256) << started;
      }
    }
    harness.Answer();
  }
  EXPECT_LT(id, 8560u + 110 * last);
  harness.RunAll();
  return rows;
}

// That holds for each of several that wait, and not only from when it is the first of them.
TEST(Waiting, EachThatWaitsForMemoryIsOvertakenByAStatedNumberOfRows) {
  EXPECT_GT(ServeBehindShortOnes(4), 30u * 256);
}

TEST(Waiting, WhoWaitsBehindManyIsOvertakenByAStatedNumberOfRows) {
  const std::uint64_t rows = ServeBehindShortOnes(100);
  std::printf("99 requests were overtaken by %llu rows\n", static_cast<unsigned long long>(rows));
  EXPECT_GT(rows, 30u * 256);
}

// A request with much time would make two running ones miss their deadlines. It waits, and a later
// request that may do so, because it has two sequences, does not start before it.
TEST(Waiting, ARequestThatWaitsForDeadlinesOfOthersIsNotOvertakenWithoutEnd) {
  CoreHarness harness({.max_overtaken_rows = 0}, WaitingGroup(), "fcfs");
  harness.step_ns = WaitingStepNs;
  for (std::uint32_t i = 1; i <= 8; ++i) {  // the forecast learns what a row costs
    harness.core.Submit(0, DistinctRequest(10 + i, 20, 20 * i));
  }
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 2; ++id) {
    TokenizedRequest urgent = DistinctRequest(id, 20, 1000);
    // 1,000 steps of two rows are in time by the forecast and its margin, of three rows they are
    // not.
    urgent.deadline_ns = harness.now_ns + std::int64_t{1000} * 1'050'000 * 13 / 12;
    harness.core.Submit(harness.now_ns, urgent);
  }
  for (int step = 0; step < 20; ++step) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  for (std::uint64_t id = 3; id <= 4; ++id) {
    TokenizedRequest later = DistinctRequest(id, 20, 5);
    later.deadline_ns = harness.now_ns + 600'000'000'000;
    later.sequences = id == 4 ? 2 : 1;
    harness.core.Submit(harness.now_ns, later);
  }
  for (int step = 0; step < 5; ++step) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  EXPECT_EQ(harness.TokensOf(3), 0u);
  EXPECT_EQ(harness.TokensOf(4), 0u);
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 2; ++id) EXPECT_TRUE(harness.EndOf(id)->status.ok());
}

// The head's prompt is as long as the step, so shorter ones are considered first. They may not
// overtake it; but as most of it is cached, there are rows for one of them, and that is the first.
TEST(Waiting, WhoMayNotOvertakeTheHeadKeepsItsTurn) {
  CoreHarness harness({.max_seqs = 2, .max_step_tokens = 64, .max_overtaken_rows = 0},
                      WaitingGroup());
  const TokenizedRequest first = DistinctRequest(1, 100, 1);
  harness.core.Submit(0, first);
  harness.RunAll();
  TokenizedRequest head = first;
  head.id.counter = 2;
  head.stop.max_tokens = 50;
  harness.core.Submit(0, head);
  harness.core.Submit(0, DistinctRequest(3, 5, 50));
  harness.core.Submit(0, DistinctRequest(4, 6, 50));
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  std::vector<std::uint64_t> opened;
  for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
    opened.push_back(open.request.counter);
  }
  EXPECT_EQ(opened, std::vector<std::uint64_t>({2, 3}));
  harness.Answer();
  harness.RunAll();
}

// The head's blocks are in a tier, and just fit. A shorter request does not take one of the blocks
// that they are to be read back to.
TEST(Waiting, AHeadThatIsToBeReadBackIsNotOvertakenWithoutEnd) {
  ExecutorDescription group = WaitingGroup(22);
  group.tiers = {{.block_count = 100, .out_ns_per_block = 10, .in_ns_per_block = 10}};
  CoreHarness harness({.max_step_tokens = 64,
                       .watermark_blocks = 0,
                       .expected_output_permille = 0,
                       .max_overtaken_rows = 0},
                      group);
  const TokenizedRequest first = DistinctRequest(1, 161, 1);
  harness.core.Submit(0, first);
  harness.RunAll();
  harness.core.Submit(0, DistinctRequest(2, 320, 1));  // takes its blocks
  harness.RunAll();
  harness.core.Submit(0, DistinctRequest(3, 150, 18));  // leaves eleven
  PlansToFirstToken(harness, 3);
  TokenizedRequest head = first;
  head.id.counter = 4;
  harness.core.Submit(0, head);
  for (std::uint64_t id = 5; id <= 6; ++id) harness.core.Submit(0, DistinctRequest(id, 5, 50));
  std::vector<std::uint64_t> opened;
  bool loads = false;
  while (opened.empty()) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      opened.push_back(open.request.counter);
    }
    for (const BackgroundCopy& copy : CoreHarness::OpsOf<BackgroundCopy>(harness.plans.back())) {
      loads |= copy.kind == BackgroundCopy::Kind::kIn;
    }
    harness.Answer();
  }
  EXPECT_TRUE(loads);
  EXPECT_EQ(opened.front(), 4u);
  harness.RunAll();
}

}  // namespace
}  // namespace flotilla::scheduler
