// Who waits for whom, and for how long: in plans, rows and virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/scheduler/waiting_groups.h"

namespace flotilla::scheduler {
namespace {

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

// A row of a prompt costs more with each position before it.
std::int64_t WithDearContext(const worker::Batch& batch) {
  std::int64_t ns = ThisCpuNs(batch);
  for (const worker::BatchItem& item : batch.items) {
    if (!item.decode) ns += 20'000 * std::int64_t{item.first_position} * item.row_count;
  }
  return ns;
}

// So it does where a row of it takes more time than a step has left.
TEST(Waiting, ALongPromptAdvancesInEachStepWhateverItsContext) {
  CoreHarness harness({}, ThisCpuGroup());
  DecodeBeside(harness, 8);
  harness.batch_ns = WithDearContext;
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

// The head goes before a prompt that was begun, which is shorter now and whose context is so long
// that a row of it takes all the time that the target leaves.
TEST(Waiting, AHeadThatGaveItsRowsToAShorterPromptStarts) {
  CoreHarness harness({}, ThisCpuGroup(), "edf");
  DecodeBeside(harness, 8);
  harness.batch_ns = WithDearContext;
  const auto submit = [&](std::uint64_t id, std::uint32_t prompt, std::int64_t deadline_ns) {
    TokenizedRequest request = DistinctRequest(id, prompt, 1);
    request.deadline_ns = deadline_ns;
    harness.core.Submit(harness.now_ns, request);
  };
  submit(1, 4000, std::int64_t{1} << 60);
  for (std::uint32_t rows = 0; rows < 3850;) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    const StepTimings step = harness.Answer().timings;
    rows += step.rows - step.decode_rows;
  }
  submit(2, 1000, std::int64_t{1} << 59);
  int plans = 0;
  for (bool started = false; !started && plans < 30; ++plans) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      started |= open.request.counter == 2;
    }
    EXPECT_EQ(harness.TokensOf(1), 0u);
    harness.Answer();
  }
  EXPECT_LE(plans, 2);
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
