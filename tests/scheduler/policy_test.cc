// Tests which request goes first, in virtual time: policies, fair share between tenants, deadlines,
// refusals by predicted wait, and the inter-token target.
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/core/fair_share.h"
#include "tests/scheduler/core_harness.h"
#include "tests/support/random.h"

namespace flotilla::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ExecutorDescription PolicyGroup() {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.prefill_ns_per_token = 20'000;
  group.decode_ns_per_step = 1'000'000;
  return group;
}

// Weights are read once per step; each row adds a little.
std::int64_t PolicyStepNs(std::uint32_t prefill_rows, std::uint32_t decode_rows) {
  return 1'000'000 + 20'000 * (prefill_rows + std::int64_t{decode_rows});
}

// The order in which three waiting requests start, one at a time.
std::vector<std::uint64_t> OrderUnder(const char* policy) {
  CoreHarness harness({.max_seqs = 1}, PolicyGroup(), policy);
  harness.Submit(9, 4, 1);
  harness.Plan();
  TokenizedRequest a = CoreHarness::Request(1, 40, 30);
  TokenizedRequest b = CoreHarness::Request(2, 8, 4);
  TokenizedRequest c = CoreHarness::Request(3, 20, 10);
  a.deadline_ns = 90'000'000'000;
  c.deadline_ns = 60'000'000'000;
  c.priority = policy == std::string("priority") ? 5 : 0;
  for (const TokenizedRequest& request : {a, b, c}) harness.core.Submit(0, request);
  std::vector<std::uint64_t> order;
  for (int step = 0; step < 200; ++step) {
    if (harness.plans.empty() && harness.Plan() != StallReason::kNone) break;
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans[0])) {
      if (open.request.counter != 9) order.push_back(open.request.counter);
    }
    harness.Answer();
  }
  return order;
}

TEST(Policy, EachHasItsOrder) {
  EXPECT_THAT(OrderUnder("fcfs"), ElementsAre(1, 2, 3));
  EXPECT_THAT(OrderUnder("priority"), ElementsAre(3, 1, 2));
  EXPECT_THAT(OrderUnder("srpt"), ElementsAre(2, 3, 1));
  EXPECT_THAT(OrderUnder("edf"), ElementsAre(3, 1, 2));
  EXPECT_EQ(MakePolicy("none"), nullptr);
  for (const absl::string_view name : PolicyNames()) EXPECT_EQ(MakePolicy(name)->name(), name);
}

// A request with the key that the policy gives it.
auto Keyed(absl::string_view policy, std::int32_t priority, std::int64_t predicted_ns,
           std::int64_t deadline_ns) {
  struct Request request;
  request.priority = priority;
  request.deadline_ns = deadline_ns;
  request.order = MakePolicy(policy)->Key(request, predicted_ns);
  return request;
}

TEST(Policy, ClassesGoFirstUnderEachButFcfs) {
  for (const absl::string_view policy : PolicyNames()) {
    const auto high = Keyed(policy, 5, 1000, 1000);
    auto low = Keyed(policy, -5, 10, 10);
    low.arrival = 1;
    EXPECT_TRUE(GoesBefore(high, low)) << policy;  // under fcfs, as it came first
    auto late = Keyed(policy, 5, 1000, 1000);
    late.arrival = 2;
    EXPECT_EQ(GoesBefore(late, low), policy != "fcfs") << policy;
    EXPECT_EQ(GoesBefore(low, late), policy == "fcfs") << policy;
  }
}

TEST(Policy, WhoIsProtectedGoesBeforeEveryClass) {
  for (const absl::string_view policy : PolicyNames()) {
    const auto high = Keyed(policy, 100, 10, 10);
    auto reserved = Keyed(policy, -100, 1000, 1000);
    reserved.arrival = 1;
    auto first = Keyed(policy, -100, 1000, 1000);
    first.arrival = 2;
    reserved.protection = Protection::kReserved;
    first.protection = Protection::kNonPreemptible;
    EXPECT_TRUE(GoesBefore(reserved, high) && GoesBefore(first, reserved)) << policy;
    EXPECT_FALSE(GoesBefore(high, reserved) || GoesBefore(reserved, first)) << policy;
  }
}

TEST(FairShare, TurnsFollowTokensAndWeights) {
  FairShare fair(true, {{"b", 3}});
  const TableIndex a = fair.Join("a"), b = fair.Join("b");
  fair.Charge(a, 100);
  EXPECT_TRUE(fair.Before(b, a));
  fair.Charge(b, 299);
  EXPECT_TRUE(fair.Before(b, a));
  fair.Charge(b, 2);
  EXPECT_TRUE(fair.Before(a, b));
}

// The counters beside a list of them that is searched each time.
TEST(FairShare, IsWhatASlowTwinIs) {
  testing::Random random(1);
  FairShare fair(true, {});
  std::map<std::string, std::pair<std::uint64_t, std::vector<TableIndex>>> tenants;  // and requests
  const auto floor = [&] {
    std::optional<std::uint64_t> least;
    for (const auto& [name, tenant] : tenants) {
      if (!tenant.second.empty()) least = std::min(least.value_or(tenant.first), tenant.first);
    }
    return least;
  };
  std::uint64_t last_floor = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string name = std::to_string(random.Below(40));
    auto& [served, requests] = tenants[name];
    if (requests.empty() || random.OneIn(3)) {
      if (requests.empty()) served = std::max(served, floor().value_or(last_floor));
      requests.push_back(fair.Join(name));
    } else if (random.OneIn(2)) {
      const std::uint64_t cost = random.Below(50);
      fair.Charge(requests.back(), cost);
      served += cost * 1024;
    } else {
      last_floor = std::max(last_floor, *floor());
      fair.Leave(requests.back());
      requests.pop_back();
    }
    ASSERT_EQ(fair.StandingOf(name).served,
              requests.empty() ? std::max(served, floor().value_or(last_floor)) : served)
        << i;
  }
}

TEST(FairShare, NobodySavesUpTurnsNorSheds) {
  FairShare fair(true, {});
  const TableIndex a = fair.Join("a"), b = fair.Join("b");
  fair.Charge(a, 1000);
  fair.Charge(b, 1500);
  fair.Leave(b);
  fair.Charge(a, 300);                  // 1300
  const TableIndex c = fair.Join("c");  // never seen: starts level with a
  fair.Charge(a, 1);
  EXPECT_TRUE(fair.Before(c, a));
  fair.Charge(c, 2);
  EXPECT_TRUE(fair.Before(a, c));
  EXPECT_TRUE(fair.Before(a, fair.Join("b")));  // what b took is remembered
}

TEST(FairShare, ForgetsTenantsThatOweNothing) {
  FairShare fair(true, {});
  const TableIndex stays = fair.Join("stays");
  for (int i = 0; i < 20'000; ++i) {
    const TableIndex index = fair.Join(std::to_string(i));
    fair.Charge(stays, 10);
    fair.Charge(index, 5);
    fair.Leave(index);
  }
  EXPECT_LT(fair.size(), 10u);
}

// Runs two tenants, one of which sends ten times as much. Both always have requests waiting.
// Returns the output tokens of each.
std::map<std::string, double> Shares(std::vector<std::pair<std::string, std::uint32_t>> weights) {
  CoreOptions options{.max_seqs = 16, .max_queued_tokens = 1 << 20, .fair_share = true};
  options.tenant_weights = std::move(weights);
  CoreHarness harness(options, PolicyGroup());
  harness.step_ns = PolicyStepNs;
  testing::Random random(7);
  std::map<std::string, double> tokens;
  std::map<std::uint64_t, std::string> tenant_of;
  std::map<std::string, int> live;
  std::uint64_t id = 1;
  const auto send = [&](const std::string& tenant) {
    TokenizedRequest request = CoreHarness::Request(id, random.Between(4, 60), 60);
    request.tenant = tenant;
    request.stop.max_tokens = random.Between(1, 60);
    tenant_of[id++] = tenant;
    ++live[tenant];
    harness.core.Submit(harness.now_ns, request);
  };
  for (int step = 0; step < 6000; ++step) {
    while (live["heavy"] < 400) send("heavy");
    while (live["light"] < 40) send("light");
    if (harness.Plan() == StallReason::kNone || !harness.plans.empty()) harness.Answer();
    for (auto& [counter, events] : harness.events) {
      for (const EngineEvent& event : events) {
        const std::string& tenant = tenant_of[counter];
        if (std::holds_alternative<TokenEvent>(event)) ++tokens[tenant];
        if (std::holds_alternative<RequestEnd>(event)) --live[tenant];
      }
    }
    harness.events.clear();
  }
  return tokens;
}

TEST(FairShare, BackloggedTenantsGetTheirWeights) {
  std::map<std::string, double> tokens = Shares({});
  std::printf("equal weights: heavy %.0f, light %.0f\n", tokens["heavy"], tokens["light"]);
  EXPECT_NEAR(tokens["light"] / (tokens["heavy"] + tokens["light"]), 0.5, 0.025);
  tokens = Shares({{"light", 3}});
  std::printf("weights 1 and 3: heavy %.0f, light %.0f\n", tokens["heavy"], tokens["light"]);
  EXPECT_NEAR(tokens["light"] / (tokens["heavy"] + tokens["light"]), 0.75, 0.0375);
}

struct Service {
  int sent = 0, met = 0, late = 0, refused = 0;
};

// Serves Poisson arrivals at `load` times the rate that the group can serve. Deadlines are 2 to 10
// times the latency without load.
Service ServeDeadlines(const char* policy, double load) {
  CoreOptions options{.max_seqs = 8};
  CoreHarness harness(options, PolicyGroup(), policy);
  harness.step_ns = PolicyStepNs;
  testing::Random random(3);
  const auto uniform = [&] { return (random.Below(1 << 30) + 0.5) / (1 << 30); };
  // Eight requests at a time make 8 tokens in 1.16 ms. On average a request has 100 prompt tokens
  // and 50 outputs, which take 9.3 ms of the group.
  const double gap_ns = 9.3e6 / load;
  double next_ns = 0;
  Service service;
  std::uint64_t id = 1;
  while (harness.now_ns < 60'000'000'000) {
    while (next_ns <= static_cast<double>(harness.now_ns)) {
      TokenizedRequest request = CoreHarness::Request(id++, random.Between(20, 180), 50);
      request.stop.max_tokens = random.Between(20, 80);
      const double alone_ns =
          2e6 + 2e4 * static_cast<double>(request.prompt.size()) + 1.02e6 * request.stop.max_tokens;
      request.deadline_ns = static_cast<std::int64_t>(next_ns + alone_ns * (2 + 8 * uniform()));
      harness.core.Submit(harness.now_ns, request);
      ++service.sent;
      next_ns -= gap_ns * std::log(uniform());
    }
    if (harness.Plan() == StallReason::kNone) {
      harness.Answer();
    } else if (!harness.plans.empty()) {
      harness.Answer();
    } else {
      harness.now_ns = static_cast<std::int64_t>(next_ns) + 1;
    }
    for (auto& [counter, events] : harness.events) {
      for (const EngineEvent& event : events) {
        const auto* end = std::get_if<RequestEnd>(&event);
        if (end == nullptr) continue;
        service.met += end->status.ok();
        service.late += absl::IsDeadlineExceeded(end->status);
        service.refused += absl::IsResourceExhausted(end->status);
      }
    }
    harness.events.clear();
  }
  std::printf("%s at %.1f times capacity: %d of %d met, %d late, %d refused\n", policy, load,
              service.met, service.sent, service.late, service.refused);
  return service;
}

TEST(Deadlines, EarliestFirstMeetsMoreThanFcfs) {
  const Service fcfs = ServeDeadlines("fcfs", 2);
  const Service edf = ServeDeadlines("edf", 2);
  // fcfs met 4,570 while it computed requests that could not meet their deadline.
  EXPECT_GE(edf.met, 1.5 * 4570);
  EXPECT_GE(edf.met, 1.05 * fcfs.met);
  EXPECT_GE(fcfs.met, 1.2 * 4570);
  // Without overload the policy loses nothing.
  EXPECT_GE(ServeDeadlines("edf", 0.5).met, ServeDeadlines("fcfs", 0.5).met * 0.99);
}

TEST(Deadlines, ARequestThatCannotMakeItEndsBeforeItsPrefill) {
  CoreHarness harness({.max_seqs = 1}, PolicyGroup(), "edf");
  harness.step_ns = PolicyStepNs;
  harness.Submit(1, 10, 20);
  harness.Plan();
  TokenizedRequest request = CoreHarness::Request(2, 10, 30);
  request.deadline_ns = 33'000'000;  // 30 ms alone, but the first takes 20
  harness.core.Submit(0, request);
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.ReasonOf(2), FinishReason::kDeadline);
  EXPECT_THAT(std::string(harness.EndOf(2)->status.message()), HasSubstr("could not"));
  EXPECT_EQ(harness.core.Snapshot().counters.dropped_late, 1u);
  EXPECT_EQ(harness.core.Snapshot().counters.prefill_tokens, 10u);
}

TEST(Admission, ALongWaitIsRefusedWithItsLength) {
  CoreHarness harness({.max_seqs = 1, .max_wait_ns = 50'000'000}, PolicyGroup());
  harness.step_ns = PolicyStepNs;
  std::uint64_t id = 1;
  while (!harness.EndOf(id - 1).has_value() && id < 1000) {
    harness.Submit(id, 100, 20);
    if (harness.plans.empty()) harness.Plan();
    ++id;
  }
  const RequestEnd refused = *harness.EndOf(id - 1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status));
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("the wait would be about"));
  EXPECT_GE(refused.retry_after_ms, 50);
  EXPECT_LT(id, 40u);
}

TEST(Planner, ChunksLeaveRoomForTheInterTokenTarget) {
  CoreHarness harness({.max_step_tokens = 512, .max_chunk_tokens = 512, .itl_target_ns = 3'000'000},
                      PolicyGroup());
  harness.step_ns = PolicyStepNs;
  harness.Submit(1, 4, 400);
  for (int i = 0; i < 50; ++i) {
    harness.Plan();
    harness.Answer();
  }
  harness.Submit(2, 3000, 1);
  std::int64_t longest = 0, steps = 0;
  while (!harness.EndOf(2).has_value() && steps < 1000) {
    harness.Plan();
    const std::int64_t before = harness.now_ns;
    harness.Answer();
    if (++steps > 3) longest = std::max(longest, harness.now_ns - before);  // the first tell
  }
  EXPECT_LE(longest, 3'200'000);
  EXPECT_LT(steps, 45);  // 3,000 rows, 99 at a time
}

}  // namespace
}  // namespace flotilla::scheduler
