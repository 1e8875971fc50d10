// Who waits for whom, and for how long: in plans, rows and virtual time.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

ExecutorDescription WaitingGroup(std::uint32_t blocks = 4000) {
  ExecutorDescription group;
  group.vocab_size = 1000;
  group.max_context = 16384;
  group.groups = {KvGroup{.tokens_per_block = 16}};
  group.block_count = blocks;
  group.max_sequences = 512;
  group.max_step_tokens = 8192;
  group.prefill_ns_per_token = 20'000;
  group.decode_ns_per_step = 1'000'000;
  return group;
}

// The time of a step on a machine that reads its weights in 1 ms and computes a row in 20 us.
std::int64_t WaitingStepNs(std::uint32_t prefill_rows, std::uint32_t decode_rows) {
  return 1'000'000 + 20'000 * std::int64_t{prefill_rows + decode_rows};
}

// A prompt that shares no block with the prompt of another id.
TokenizedRequest DistinctRequest(std::uint64_t id, std::uint32_t prompt_tokens,
                                 std::uint32_t max_tokens) {
  TokenizedRequest request = CoreHarness::Request(id, prompt_tokens, max_tokens);
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    request.prompt[i] = static_cast<TokenId>((id * 7919 + i * 31 + id * i) % 1000);
  }
  return request;
}

// The machine of ThisCpuNs.
ExecutorDescription ThisCpuGroup(std::uint32_t blocks = 4000) {
  ExecutorDescription group = WaitingGroup(blocks);
  group.prefill_ns_per_token = kThisCpuPrefillNs;
  group.decode_ns_per_step = kThisCpuDecodeNs;
  return group;
}

// Begins requests that decode for long on the machine of ThisCpuNs. Others that have ended by then
// have shown what steps with more and fewer decodes cost.
void DecodeBeside(CoreHarness& harness, std::uint32_t decodes) {
  harness.batch_ns = ThisCpuNs;
  const auto submit = [&](std::uint64_t id, std::uint32_t max_tokens) {
    TokenizedRequest request = DistinctRequest(id, 20, max_tokens);
    request.tenant = "beside";
    harness.core.Submit(harness.now_ns, request);
  };
  for (std::uint32_t i = 1; i <= 32; ++i) submit(1'000'500 + i, 4 * i);
  for (std::uint32_t i = 0; i < decodes; ++i) submit(2'000'600 + i, 4000);
  while (harness.core.live_requests() > decodes) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  harness.events.clear();
}

// Plans and answers until the request has a token. Returns the number of plans.
int PlansToFirstToken(CoreHarness& harness, std::uint64_t id, int most = 1000) {
  int plans = 0;
  for (; harness.TokensOf(id) == 0 && plans < most; ++plans) {
    EXPECT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  return plans;
}

class UrgentRequest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(, UrgentRequest, ::testing::Values("priority", "srpt", "edf"),
                         [](const auto& test) { return std::string(test.param); });

struct LongPrefill {
  int plans = 0;                // until it has ended
  int most_to_first_token = 0;  // plans that an urgent request had to wait
};

// Serves a prompt of 8,000 tokens of the lowest class one plan ahead, as an engine does. Each time
// that `comes` holds for the number of plans that it has had, a request of 10 tokens of the highest
// class comes.
LongPrefill ServeLongPrefill(CoreHarness& harness, const std::function<bool(int)>& comes) {
  TokenizedRequest slow = DistinctRequest(1, 8000, 5);
  slow.priority = -100;
  harness.core.Submit(harness.now_ns, slow);
  harness.Plan();
  LongPrefill served;
  std::map<std::uint64_t, int> sent;
  std::uint64_t id = 10;
  for (int plans = 1; !harness.EndOf(1).has_value() && plans < 2000; ++plans) {
    served.plans = plans;
    if (comes(plans)) {
      TokenizedRequest urgent = DistinctRequest(++id, 10, 5);
      urgent.priority = 100;
      urgent.deadline_ns = std::int64_t{1} << 60;
      harness.core.Submit(harness.now_ns, urgent);
      sent[id] = plans;
    }
    harness.Plan();
    harness.Answer();
    for (auto it = sent.begin(); it != sent.end();) {
      served.most_to_first_token = std::max(served.most_to_first_token, plans - it->second + 1);
      it = harness.TokensOf(it->first) > 0 ? sent.erase(it) : std::next(it);
    }
  }
  EXPECT_TRUE(harness.EndOf(1).has_value());
  return served;
}

// A prompt of 8,000 tokens whose chunks are the whole step holds up nobody of a higher class, and
// the work takes as many steps as it would without the newcomer, whose rows fit into the last one.
TEST_P(UrgentRequest, StartsWithinThreePlansOfALongPrefill) {
  const auto serve = [](int at) {
    CoreHarness harness({}, WaitingGroup(), GetParam());
    return ServeLongPrefill(harness, [at](int plan) { return plan == at; });
  };
  const LongPrefill alone = serve(0);
  for (const int at : {1, 2, 15, 30}) {
    const LongPrefill beside = serve(at);
    EXPECT_LE(beside.most_to_first_token, 3) << at;
    EXPECT_EQ(beside.plans, alone.plans) << at;
  }
}

// The same where the times of steps are known, so that chunks follow them, alone and beside others
// that decode. While the newcomer decodes, too, chunks are smaller: each of its further tokens
// costs the long prompt one step at most.
TEST_P(UrgentRequest, StartsWithinThreePlansWhereChunksFollowTheTimeOfSteps) {
  for (const std::uint32_t decodes : {0, 1, 8, 32}) {
    SCOPED_TRACE(decodes);
    const auto serve = [&](const std::function<bool(int)>& comes) {
      CoreHarness harness({}, ThisCpuGroup(), GetParam());
      DecodeBeside(harness, decodes);
      return ServeLongPrefill(harness, comes);
    };
    const LongPrefill alone = serve([](int) { return false; });
    for (const int at : {1, 20, 100, 200}) {
      if (at > alone.plans) continue;  // without decodes the prompt takes some 32 plans
      const LongPrefill beside = serve([at](int plan) { return plan == at; });
      EXPECT_LE(beside.plans, alone.plans + 4) << at;
    }
    // Some come just before a step without chunks.
    const LongPrefill many = serve([](int plan) { return plan % 7 == 1; });
    EXPECT_LE(many.most_to_first_token, 3);
  }
}

// A short request of the same class has rows beside a long prompt that came before it.
TEST(Waiting, AShortPromptDoesNotWaitForTheEndOfALongOne) {
  for (const std::uint32_t max_chunk_tokens : {256, 255}) {
    SCOPED_TRACE(max_chunk_tokens);
    CoreHarness harness({.max_chunk_tokens = max_chunk_tokens}, WaitingGroup());
    harness.Submit(1, 8000, 5);
    harness.Plan();
    harness.Answer();
    harness.Submit(2, 10, 5);
    EXPECT_LE(PlansToFirstToken(harness, 2), 3);
  }
}

// Behind a long context few rows of the long prompt take all the time that a step has for chunks,
// also when it has fewer left than the step has rows, or a chunk is small.
TEST(Waiting, AShortPromptDoesNotWaitForRowsBehindALongContext) {
  for (const auto& [decodes, max_chunk_tokens] :
       {std::pair(8u, 256u), std::pair(8u, 64u), std::pair(32u, 64u)}) {
    SCOPED_TRACE(decodes + max_chunk_tokens);
    CoreHarness harness({.max_chunk_tokens = max_chunk_tokens}, ThisCpuGroup());
    DecodeBeside(harness, decodes);
    harness.core.Submit(harness.now_ns, DistinctRequest(1, 12000, 5));
    int most = 0;
    std::uint64_t id = 1;
    while (harness.TokensOf(1) == 0 && id < 2000) {
      harness.core.Submit(harness.now_ns, DistinctRequest(++id, 10, 2));
      most = std::max(most, PlansToFirstToken(harness, id));
    }
    EXPECT_GT(id, 100u);
    EXPECT_LE(most, 3);
  }
}

// Short prompts that never end get a part of each step, so the long prompt goes on.
TEST(Waiting, ALongPromptKeepsMostOfEachStep) {
  CoreHarness harness({}, WaitingGroup());
  harness.Submit(1, 8000, 1);
  std::uint64_t id = 1;
  int plans = 0;
  for (; harness.TokensOf(1) == 0 && plans < 1000; ++plans) {
    for (int i = 0; i < 20; ++i) harness.core.Submit(0, DistinctRequest(++id, 60, 1));
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  EXPECT_LE(plans, 8000 / 192 + 2);
  EXPECT_GE(harness.core.Snapshot().counters.length, std::uint64_t(plans));  // one short one a plan
}

// So it does where a row of it takes more time than a step has left.
TEST(Waiting, ALongPromptAdvancesInEachStepWhateverItsContext) {
  CoreHarness harness({}, ThisCpuGroup());
  DecodeBeside(harness, 8);
  harness.batch_ns = [](const worker::Batch& batch) {
    std::int64_t ns = ThisCpuNs(batch);
    for (const worker::BatchItem& item : batch.items) {
      if (!item.decode) ns += 20'000 * std::int64_t{item.first_position} * item.row_count;
    }
    return ns;
  };
  harness.core.Submit(harness.now_ns, DistinctRequest(1, 4000, 1));
  std::uint64_t id = 1;
  int plans = 0;
  for (; harness.TokensOf(1) == 0 && plans < 2000; ++plans) {
    for (int i = 0; i < 20; ++i) {
      harness.core.Submit(harness.now_ns, DistinctRequest(++id, 60, 1));
    }
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  EXPECT_LE(plans, 4000 / 8 + 20);
}

struct LightTenant {
  std::size_t served = 0;
  std::int64_t worst_ns = 0, mean_ns = 0;  // to the first token
  int worst_plans = 0;
  double mean_plans = 0;
};

// Serves a tenant that sends little, while another one always has three prompts of 8,000 tokens.
LightTenant ServeLightTenant(CoreHarness& harness) {
  std::map<std::uint64_t, std::pair<std::int64_t, int>> sent;
  std::uint64_t heavy_id = 0, light_id = 100'500;
  int heavy = 0;
  LightTenant light;
  std::int64_t sum = 0;
  for (int step = 0; step < 1000; ++step) {
    for (; heavy < 3; ++heavy) {
      TokenizedRequest request = DistinctRequest(++heavy_id, 8000, 2);
      request.tenant = "heavy";
      harness.core.Submit(harness.now_ns, request);
    }
    if (step % 40 == 7) {
      TokenizedRequest request = DistinctRequest(++light_id, 20, 2);
      request.tenant = "light";
      sent[light_id] = {harness.now_ns, step};
      harness.core.Submit(harness.now_ns, request);
    }
    EXPECT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
    for (const auto& [id, events] : harness.events) {
      for (const EngineEvent& event : events) {
        heavy -= id < 100'000 && std::holds_alternative<RequestEnd>(event);
        if (!sent.contains(id) || !std::holds_alternative<TokenEvent>(event)) continue;
        const auto [at, plan] = sent[id];
        light.worst_ns = std::max(light.worst_ns, harness.now_ns - at);
        light.worst_plans = std::max(light.worst_plans, step - plan + 1);
        light.mean_plans += step - plan + 1;
        sum += harness.now_ns - at;
        ++light.served;
        sent.erase(id);
      }
    }
    harness.events.clear();
  }
  light.mean_ns = sum / static_cast<std::int64_t>(std::max<std::size_t>(light.served, 1));
  light.mean_plans /= static_cast<double>(std::max<std::size_t>(light.served, 1));
  return light;
}

// A tenant that sends little has its first token within three full steps, and within two in the
// mean, although another tenant always has three prompts of 8,000 tokens.
TEST(Waiting, UnderFairShareTheLightTenantWaitsForTwoSteps) {
  CoreHarness harness({.max_queued_tokens = 1 << 24, .fair_share = true}, WaitingGroup(20000));
  const auto step_ns = [](std::uint32_t p, std::uint32_t d) {
    return 2'500'000ll + 380'000ll * p + 600'000ll * d;
  };
  harness.step_ns = step_ns;
  const LightTenant light = ServeLightTenant(harness);
  EXPECT_GE(light.served, 24u);
  EXPECT_LE(light.worst_ns, 3 * step_ns(256, 0));
  EXPECT_LE(light.mean_ns, 2 * step_ns(256, 0));
}

// The same where context costs time, too, alone and beside others that decode.
TEST(Waiting, UnderFairShareTheLightTenantWaitsForTwoStepsWhereChunksFollowTheirTime) {
  // In the middle of a prompt of 8,000 tokens.
  constexpr std::int64_t kFullStepNs = 2'490'000 + 256 * (380'000 + 180 * 4000);
  for (const std::uint32_t decodes : {0, 8, 32}) {
    SCOPED_TRACE(decodes);
    CoreHarness harness({.max_queued_tokens = 1 << 24, .fair_share = true}, ThisCpuGroup(20000));
    DecodeBeside(harness, decodes);
    const LightTenant light = ServeLightTenant(harness);
    EXPECT_GE(light.served, 24u);
    EXPECT_LE(light.worst_plans, 3);
    EXPECT_LE(light.mean_ns, 2 * kFullStepNs);
    // One of them may come just before a step without chunks.
    EXPECT_LE(light.mean_plans, 2 + 1.0 / static_cast<double>(light.served));
  }
}

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

// Two prompts of two tenants share the steps, although one came first and is far longer.
TEST(Waiting, UnderFairShareTenantsShareTheRowsOfSteps) {
  CoreHarness harness({.fair_share = true}, WaitingGroup(2000));
  TokenizedRequest heavy = DistinctRequest(1, 8000, 2), light = DistinctRequest(2, 2000, 2);
  heavy.tenant = "heavy";
  light.tenant = "light";
  harness.core.Submit(0, heavy);
  for (int step = 0; step < 4; ++step) {
    harness.Plan();
    harness.Answer();
  }
  harness.core.Submit(0, light);
  EXPECT_LE(PlansToFirstToken(harness, 2), 2 * 2000 / 256 + 3);
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

// That holds for each of several that wait, and not only from when it is the first of them.
TEST(Waiting, EachThatWaitsForMemoryIsOvertakenByAStatedNumberOfRows) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0}, WaitingGroup(101));
  harness.core.Submit(0, DistinctRequest(1, 700, 880));  // 99 blocks in the end
  PlansToFirstToken(harness, 1);
  // 63 blocks each, of which 55 are free at first: they start one after the other.
  constexpr std::uint64_t kLast = 4;
  for (std::uint64_t id = 2; id <= kLast; ++id)
    harness.core.Submit(0, DistinctRequest(id, 1000, 9));
  std::uint64_t id = 100, rows = 0;
  for (std::uint64_t started = 1; started < kLast;) {
    for (int i = 0; i < 3; ++i) harness.core.Submit(0, DistinctRequest(++id, 60, 1));
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      if (open.request.counter > kLast) {
        rows += 60;
      } else {
        started = open.request.counter;
        EXPECT_LE(rows, 32u * 256) << started;
      }
    }
    harness.Answer();
    ASSERT_LT(id, 9000u);
  }
  EXPECT_GT(rows, 30u * 256);
  harness.RunAll();
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

class AfterADeath : public ::testing::TestWithParam<int> {
 protected:
  // Kills a group that decodes for `n` requests with prompts of 500 tokens. Returns the time from
  // the next Ready to the last pause's end. `newcomer` comes at Ready.
  std::int64_t LastPause(int n, bool blamed, std::optional<std::uint64_t> newcomer) {
    CoreHarness harness({.max_seqs = 128}, WaitingGroup());
    harness.step_ns = WaitingStepNs;
    for (int id = 1; id <= n; ++id) harness.core.Submit(0, DistinctRequest(id, 500, 200));
    while (harness.TokensOf(n) < 3) {
      harness.Plan();
      harness.Answer();
    }
    harness.Plan();
    std::vector<Step> started;
    if (blamed) started.push_back(harness.plans.back().step);
    harness.core.Lost(harness.epoch(), started);
    harness.TakeEvents();
    harness.Restart();
    if (newcomer) harness.Submit(*newcomer, 10, 5);
    std::map<int, std::uint32_t> had;
    for (int id = 1; id <= n; ++id) had[id] = harness.TokensOf(id);
    const std::int64_t ready = harness.now_ns;
    int plans = 0;
    while (!had.empty() && plans < 5000) {
      EXPECT_EQ(harness.Plan(), StallReason::kNone);
      const StepResult result = harness.Answer();
      ++plans;
      if (newcomer && newcomer_plans == 0 && harness.TokensOf(*newcomer) > 0) {
        newcomer_plans = plans;
      }
      for (auto it = had.begin(); it != had.end();) {
        it = harness.TokensOf(it->first) > it->second ? had.erase(it) : std::next(it);
      }
    }
    steps = plans;
    EXPECT_EQ(harness.core.Snapshot().counters.quarantines, blamed ? std::uint64_t(n) : 0u);
    return harness.now_ns - ready;
  }
  int newcomer_plans = 0, steps = 0;
};

INSTANTIATE_TEST_SUITE_P(, AfterADeath, ::testing::Values(1, 3, 8, 16, 28, 64));

TEST_P(AfterADeath, ANewRequestStartsWithinFourPlans) {
  LastPause(GetParam(), true, 1000);
  EXPECT_GT(newcomer_plans, 0);
  EXPECT_LE(newcomer_plans, 4);
}

TEST_P(AfterADeath, TheLastPauseIsAtMostOneAndAHalfTimesThatOfAPlainReplay) {
  const std::int64_t plain = LastPause(GetParam(), false, std::nullopt);
  const int plain_steps = steps;
  const std::int64_t isolated = LastPause(GetParam(), true, std::nullopt);
  EXPECT_LE(isolated * 2, plain * 3);
  EXPECT_LE(steps, plain_steps + 2 * GetParam());
}

}  // namespace
}  // namespace flotilla::scheduler
