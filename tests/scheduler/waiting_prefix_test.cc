// Who waits for a prefix that another request computes, and who passes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "tests/scheduler/waiting_groups.h"

namespace flotilla::scheduler {
namespace {

// The head waits for a prefix that another request computes in small chunks. The short requests
// behind it use the rows that are left.
TEST(Waiting, NobodyWaitsForAPrefixThatOnlyTheHeadNeeds) {
  CoreHarness harness({.max_step_tokens = 256, .max_chunk_tokens = 64}, WaitingGroup());
  TokenizedRequest first = CoreHarness::Request(1, 12000, 5), head = first;
  head.id.counter = 2;
  for (TokenId t = 0; t < 10; ++t) head.prompt.push_back(t);
  harness.core.Submit(0, first);
  harness.Plan();
  harness.Answer();
  harness.core.Submit(0, head);
  for (std::uint64_t id = 100; id < 140; ++id) harness.Submit(id, 20, 3);
  const auto served = [&] {
    int count = 0;
    for (std::uint64_t id = 100; id < 140; ++id) count += harness.TokensOf(id) > 0;
    return count;
  };
  int plans = 0;
  while (served() < 40 && plans < 200) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    const StepResult result = harness.Answer();
    ++plans;
    if (served() < 40) {
      EXPECT_EQ(result.timings.rows, 256u) << "plan " << plans;
    }
  }
  EXPECT_LE(plans, 6);
  harness.RunAll();
  EXPECT_GE(harness.EndOf(2)->usage.cached_tokens, 11'984u);
}

// The same where more wait for the prefix than a plan tries to start in vain.
TEST(Waiting, ManyThatWaitForAPrefixHideNobody) {
  CoreHarness harness(
      {.max_step_tokens = 256, .max_chunk_tokens = 64, .max_queued_tokens = 1 << 20},
      WaitingGroup());
  TokenizedRequest first = CoreHarness::Request(1, 6000, 5), head = first;
  harness.core.Submit(0, first);
  harness.Plan();
  harness.Answer();
  for (TokenId t = 0; t < 100; ++t) {
    head.id.counter = 2 + static_cast<std::uint64_t>(t);
    head.prompt.push_back(t);
    harness.core.Submit(0, head);
  }
  EXPECT_EQ(harness.core.Snapshot().load.waiting_requests, 100u);
  for (std::uint64_t id = 200; id < 240; ++id) harness.Submit(id, 20, 3);
  for (int plan = 0; plan < 6; ++plan) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  for (std::uint64_t id = 200; id < 240; ++id) EXPECT_GT(harness.TokensOf(id), 0u) << id;
  harness.RunAll();
}

// The same where the times of steps are known, alone and beside others that decode. A plan has
// fewer rows then, but none is idle that the target for chunks allows, and short requests have a
// quarter of those of prompts at least.
class WaitingForAPrefix : public ::testing::TestWithParam<std::tuple<std::uint32_t, TokenId>> {};

INSTANTIATE_TEST_SUITE_P(, WaitingForAPrefix,
                         ::testing::Combine(::testing::Values(0, 8, 32),
                                            ::testing::Values(1, 100)));

TEST_P(WaitingForAPrefix, NoRowsAreIdleThatTheTargetAllows) {
  const auto [decodes, heads] = GetParam();
  CoreHarness harness({.max_chunk_tokens = 64, .max_queued_tokens = 1 << 20}, ThisCpuGroup());
  DecodeBeside(harness, decodes);
  TokenizedRequest first = CoreHarness::Request(1, 6000, 5), head = first;
  harness.core.Submit(harness.now_ns, first);
  harness.Plan();
  harness.Answer();
  for (TokenId t = 0; t < heads; ++t) {
    head.id.counter = 2 + static_cast<std::uint64_t>(t);
    head.prompt.push_back(t);
    harness.core.Submit(harness.now_ns, head);
  }
  for (std::uint64_t id = 200; id < 240; ++id) {
    harness.core.Submit(harness.now_ns, CoreHarness::Request(id, 20, 3));
  }
  std::int64_t target_ns = 0;
  std::uint32_t of_short = 0;
  harness.batch_ns = [&](const worker::Batch& batch) {
    std::int64_t context = 0;
    of_short = 0;
    for (const worker::BatchItem& item : batch.items) {
      if (item.decode) context += item.first_position + 1;
      if (!item.decode && item.known.size() == 20) of_short += item.row_count;
    }
    // 2.5 times what the decodes of all that run or wait take alone. No decode, no target.
    const auto all =
        static_cast<std::int64_t>(std::min<std::size_t>(harness.core.live_requests(), 64));
    const std::int64_t row_ns = 600'000 + 850 * context / std::max(batch.decode_rows, 1u);
    target_ns = batch.decode_rows > 0 ? (2'490'000 + row_ns * all) * 5 / 2 : StepTimeModel::kMostNs;
    return ThisCpuNs(batch);
  };
  const auto served = [&] {
    int count = 0;
    for (std::uint64_t id = 200; id < 240; ++id) count += harness.TokensOf(id) > 0;
    return count;
  };
  int plans = 0;
  for (; served() < 40 && plans < 400; ++plans) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    const StepTimings step = harness.Answer().timings;
    const std::uint32_t prompts = step.rows - step.decode_rows;
    if (served() == 40 || step.rows == 256) continue;
    // One row more would take longer. The forecast is off by some percent.
    EXPECT_GT(step.compute_ns + 380'000, target_ns * 85 / 100) << "plan " << plans;
    EXPECT_GE(of_short, prompts / 4) << "plan " << plans;
  }
  EXPECT_EQ(served(), 40);
  // Where so many wait that all places will be taken, the target is that of the longest decodes.
  if (heads == 100) {
    EXPECT_LE(plans, 6);
  }
}

// Serves one prompt in chunks, with `count` behind it that wait for it as their prefix, and then
// short ones.
void AddWaitingForAPrefix(CoreHarness& harness, std::uint32_t count, std::uint64_t shorts) {
  TokenizedRequest first = CoreHarness::Request(1, 6000, 5), head = first;
  harness.core.Submit(0, first);
  harness.Plan();
  harness.Answer();
  for (std::uint32_t i = 0; i < count; ++i) {
    head.id.counter = 2 + i;
    head.prompt.push_back(static_cast<TokenId>(i % 1000));
    harness.core.Submit(0, head);
  }
  for (std::uint64_t i = 0; i < shorts; ++i) harness.Submit(1000 + i, 20, 3);
}

// A plan passes over 160 requests at most.
TEST(Waiting, APlanPassesOverAStatedNumberThatWaitForAPrefix) {
  for (const std::uint32_t count : {159u, 160u}) {
    CoreHarness harness({.max_chunk_tokens = 64, .max_queued_tokens = 1 << 24}, WaitingGroup());
    AddWaitingForAPrefix(harness, count, 1);
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
    EXPECT_EQ(harness.TokensOf(1000) > 0, count < 160) << count;
  }
}

// Those behind more than that have a quarter of the rows, as all shorter prompts have: three of 20
// tokens start in each plan.
TEST(Waiting, BehindMoreThatWaitForAPrefixShortPromptsStart) {
  CoreHarness harness({.max_queued_tokens = 1 << 24}, WaitingGroup());
  AddWaitingForAPrefix(harness, 300, 40);
  for (int plan = 0; plan < 40 / 3 + 1; ++plan) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  for (std::uint64_t id = 1000; id < 1040; ++id) EXPECT_GT(harness.TokensOf(id), 0u) << id;
  EXPECT_EQ(harness.TokensOf(1), 0u);
}

// The same where nobody may be overtaken: who waits for a prefix is not overtaken by those behind.
TEST(Waiting, WhoWaitsForAPrefixHidesNobody) {
  CoreHarness harness({.max_chunk_tokens = 64, .max_overtaken_rows = 0}, WaitingGroup());
  TokenizedRequest first = CoreHarness::Request(1, 12000, 5), head = first;
  head.id.counter = 2;
  harness.core.Submit(0, first);
  harness.Plan();
  harness.Answer();
  harness.core.Submit(0, head);
  harness.Submit(3, 20, 3);
  EXPECT_LE(PlansToFirstToken(harness, 3), 3);
}

// A request of a high class waits for a prefix that one of a low class computes. The prefix is
// computed before the requests between the two.
TEST(Waiting, WhoWaitsForAPrefixLendsItsOrderToWhoComputesIt) {
  CoreHarness harness({}, WaitingGroup());
  TokenizedRequest low = CoreHarness::Request(1, 4000, 2), high = low;
  low.priority = -10;
  high.id.counter = 2;
  high.priority = 10;
  for (TokenId t = 0; t < 10; ++t) high.prompt.push_back(t);
  harness.core.Submit(0, low);
  harness.Plan();
  harness.Answer();
  for (std::uint64_t id = 3; id <= 4; ++id) harness.core.Submit(0, DistinctRequest(id, 4000, 2));
  harness.Plan();
  harness.Answer();
  harness.core.Submit(0, high);
  EXPECT_LE(PlansToFirstToken(harness, 2), 4000 / 256 + 3);
  EXPECT_EQ(harness.TokensOf(4), 0u);
  harness.RunAll();
  EXPECT_GE(harness.EndOf(2)->usage.cached_tokens, 3984u);
}

}  // namespace
}  // namespace flotilla::scheduler
