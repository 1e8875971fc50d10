// A request whose computation kills its worker group is found, and it alone fails. Requests that
// only ran beside it do not fail.
#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

ExecutorDescription QuarantineGroup() {
  ExecutorDescription group;
  group.vocab_size = 1000;
  group.max_context = 2048;
  group.groups = {KvGroup{.tokens_per_block = 16}};
  group.block_count = 400;
  group.max_sequences = 32;
  group.max_step_tokens = 256;
  group.prefill_ns_per_token = 1000;
  group.decode_ns_per_step = 1000;
  return group;
}

class QuarantineTest : public ::testing::Test {
 protected:
  QuarantineTest() : harness({}, QuarantineGroup()) {}

  // Returns the requests whose rows the plan computes.
  std::set<std::uint64_t> RequestsOf(const StepPlan& plan) {
    std::set<std::uint64_t> requests;
    for (const SequenceHandle handle : harness.worker->Sequences()) {
      const worker::SequenceView view = *harness.worker->View(handle);
      if (view.finished || !view.decoding) continue;
      const bool deferred = std::any_of(plan.ops.begin(), plan.ops.end(), [&](const PlanOp& op) {
        const auto* defer = std::get_if<Defer>(&op);
        return defer != nullptr && defer->sequence == handle;
      });
      if (!deferred) requests.insert(view.request.counter);
    }
    for (const auto& open : CoreHarness::OpsOf<OpenSequence>(plan)) {
      opened[open.sequence] = open.request.counter;
    }
    for (const auto& run : CoreHarness::OpsOf<flotilla::Run>(plan)) {
      requests.insert(opened[run.sequence]);
    }
    return requests;
  }

  // Plans and answers until nothing is left. A plan that runs `killer` kills the group. Returns how
  // often this happened.
  int RunWithKiller(std::uint64_t killer) {
    int deaths = 0;
    for (int step = 0; step < 2000; ++step) {
      if (harness.Plan() != StallReason::kNone) return deaths;
      const StepPlan& plan = harness.plans.back();
      if (RequestsOf(plan).count(killer) == 0) {
        harness.Answer();
        continue;
      }
      ++deaths;
      Die({plan.step});
    }
    ADD_FAILURE() << "no end";
    return deaths;
  }

  void Die(const std::vector<Step>& started) {
    harness.core.Lost(harness.epoch(), started);
    harness.TakeEvents();
    opened.clear();
    harness.Restart();
  }

  CoreHarness harness;
  std::map<SequenceHandle, std::uint64_t> opened;
};

TEST_F(QuarantineTest, TheOneThatKillsIsFailedAndAllOthersAreServed) {
  for (std::uint64_t id = 1; id <= 8; ++id) harness.Submit(id, 20, 12);
  EXPECT_EQ(RunWithKiller(5), 3);  // once with others, twice alone
  for (std::uint64_t id = 1; id <= 8; ++id) {
    SCOPED_TRACE(id);
    if (id == 5) {
      EXPECT_TRUE(absl::IsInternal(harness.EndOf(id)->status)) << harness.EndOf(id)->status;
    } else {
      EXPECT_TRUE(harness.EndOf(id)->status.ok());
      EXPECT_EQ(harness.TokensOf(id), 12u);
    }
  }
  const CoreCounters counters = harness.core.Snapshot().counters;
  EXPECT_EQ(counters.quarantine_failures, 1u);
  EXPECT_GT(counters.quarantine_releases, 0u);
}

// Sequences cannot be forked where a group has state, so each beam computes all of its rows again,
// in isolated steps. The first one waits for the others.
TEST(QuarantineOfBeams, GoOnWhereTheyCannotBeForked) {
  ExecutorDescription group = QuarantineGroup();
  group.groups.push_back({.kind = KvGroup::Kind::kState});
  CoreHarness harness({}, group);
  TokenizedRequest request = CoreHarness::Request(1, 20, 12);
  request.beam = BeamOptions{.beams = 2};
  request.sequences = 2;
  harness.core.Submit(0, request);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  while (harness.core.OpenSequences().size() < 2) {
    harness.Answer();
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
  }
  harness.core.Lost(harness.epoch(), {harness.plans.back().step});
  harness.Restart();
  harness.RunAll();
  ASSERT_TRUE(harness.EndOf(1).has_value());
  EXPECT_TRUE(harness.EndOf(1)->status.ok()) << harness.EndOf(1)->status;
}

// A quarantined request that needs all places waits for those of a running one. It hides nobody who
// goes before it, even if nobody may overtake it.
TEST(Quarantine, WhoWaitsForPlacesHidesNobodyWhoGoesBeforeIt) {
  ExecutorDescription group = QuarantineGroup();
  group.max_sequences = 4;
  CoreHarness harness({.max_overtaken_rows = 0}, group);
  const auto submit = [&](std::uint64_t id, std::int32_t priority, std::uint32_t sequences) {
    TokenizedRequest request = CoreHarness::Request(id, 20, 30);
    request.priority = priority;
    request.sequences = sequences;
    harness.core.Submit(0, request);
  };
  submit(1, 0, 4);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  harness.core.Lost(harness.epoch(), {harness.plans.back().step});
  harness.Restart();
  submit(2, 1, 1);
  const auto started = [&] {
    EXPECT_EQ(harness.Plan(), StallReason::kNone);
    std::set<std::uint64_t> ids;
    for (const auto& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      ids.insert(open.request.counter);
    }
    harness.Answer();
    return ids;
  };
  EXPECT_EQ(started(), std::set<std::uint64_t>{2});
  submit(3, 1, 1);  // goes before the first
  submit(4, 0, 1);  // goes behind it
  EXPECT_EQ(started(), std::set<std::uint64_t>{3});
  EXPECT_EQ(started(), std::set<std::uint64_t>{});
  harness.RunAll();
  for (const std::uint64_t id : {1, 2, 3, 4}) EXPECT_TRUE(harness.EndOf(id)->status.ok());
}

TEST_F(QuarantineTest, OneThatKillsAloneFromTheStartIsFoundToo) {
  harness.Submit(1, 20, 12);
  EXPECT_EQ(RunWithKiller(1), 3);
  EXPECT_TRUE(absl::IsInternal(harness.EndOf(1)->status));
}

// A request that another replica gives up comes with its crash count. It is computed alone first,
// and its earlier crashes count.
TEST_F(QuarantineTest, WhatDiedElsewhereIsComputedAloneFirstAndCounts) {
  harness.Submit(1, 20, 12);
  harness.Submit(2, 20, 12);
  TokenizedRequest moved = CoreHarness::Request(3, 20, 12);
  moved.attempt = Attempt(1);
  moved.crash_count = 1;
  harness.core.Submit(harness.now_ns, moved);
  EXPECT_EQ(RunWithKiller(3), 1);  // alone, and the second in all
  EXPECT_TRUE(absl::IsInternal(harness.EndOf(3)->status)) << harness.EndOf(3)->status;
  for (const std::uint64_t id : {1, 2}) EXPECT_EQ(harness.TokensOf(id), 12u);
  EXPECT_EQ(harness.core.Snapshot().counters.quarantines, 2u);  // on arrival, and at the death here
}

TEST_F(QuarantineTest, CrashesAreReported) {
  for (std::uint64_t id = 1; id <= 3; ++id) harness.Submit(id, 20, 12);
  RunWithKiller(2);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    std::vector<std::uint32_t> counts;
    for (const EngineEvent& event : harness.events[id]) {
      if (const auto* death = std::get_if<CrashCount>(&event)) counts.push_back(death->count);
    }
    EXPECT_EQ(counts, id == 2 ? std::vector<std::uint32_t>({1, 2}) : std::vector<std::uint32_t>())
        << id;
  }
}

// A request ran alone when its group was killed from outside. It is released when it gets past that
// point.
TEST_F(QuarantineTest, WhatIsInnocentElsewhereIsCleared) {
  TokenizedRequest moved = CoreHarness::Request(1, 20, 12);
  moved.attempt = Attempt(1);
  moved.output_prefix = {{5, 6, 7}};
  moved.crash_count = 1;
  harness.core.Submit(harness.now_ns, moved);
  harness.Submit(2, 20, 12);
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 9u);
  EXPECT_EQ(harness.TokensOf(2), 12u);
  EXPECT_EQ(harness.core.Snapshot().counters.quarantine_releases, 1u);
}

TEST_F(QuarantineTest, ADeathFromOutsideCostsNobodyItsAnswer) {
  for (std::uint64_t id = 1; id <= 4; ++id) harness.Submit(id, 20, 30);
  for (int round = 0; round < 10; ++round) {
    for (int step = 0; step < 20; ++step) {
      if (harness.Plan() == StallReason::kNone) harness.Answer();
    }
    if (harness.Plan() != StallReason::kNone) break;
    Die({harness.plans.back().step});
  }
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(harness.TokensOf(id), 30u);
  EXPECT_EQ(harness.core.Snapshot().counters.quarantine_failures, 0u);
}

// The group is killed from outside every 20 steps. Prompts of 32 steps never get further, so one of
// them is the one that runs at each death. None fails.
TEST(Quarantine, DeathsFromOutsideAtAnyRateFailNobody) {
  ExecutorDescription group = QuarantineGroup();
  group.max_context = 16384;
  group.block_count = 4000;
  CoreHarness harness({}, group);
  for (std::uint64_t id = 1; id <= 4; ++id) harness.Submit(id, 8000, 50);
  for (int step = 0; step < 60; ++step) {
    if (harness.Plan() == StallReason::kNone) harness.Answer();
  }
  for (int death = 1; death <= 10; ++death) {
    harness.Plan();
    harness.core.Lost(harness.epoch(), std::vector<Step>{harness.plans.back().step});
    harness.TakeEvents();
    harness.Restart();
    for (int step = 0; step < 20; ++step) {
      if (harness.Plan() == StallReason::kNone) harness.Answer();
    }
    ASSERT_EQ(harness.core.Snapshot().counters.quarantine_failures, 0u) << "death " << death;
  }
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(harness.TokensOf(id), 50u);
}

// The group is killed from outside again and again, each time at other rows of the only request.
TEST_F(QuarantineTest, OnlyDeathsAtTheSameRowsCount) {
  harness.Submit(1, 1900, 12);  // eight steps
  for (const int steps : {7, 6, 5, 4, 3, 2}) {
    for (int step = 0; step < steps; ++step) {
      ASSERT_EQ(harness.Plan(), StallReason::kNone);
      harness.Answer();
    }
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    Die({harness.plans.back().step});
  }
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 12u);
}

TEST_F(QuarantineTest, ADeathWithNoStepStartedBlamesNobody) {
  harness.Submit(1, 20, 12);
  for (int round = 0; round < 5; ++round) {
    harness.Plan();
    Die({});
  }
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 12u);
  EXPECT_EQ(harness.core.Snapshot().counters.quarantines, 0u);
}

// An isolated step of one request and a step of another were under way. Either may have been fatal,
// so this counts as a crash of neither.
TEST_F(QuarantineTest, ADeathDuringTwoStepsBlamesNoneOfTheirRequests) {
  harness.Submit(1, 20, 30);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  Die({harness.plans.back().step});
  for (std::uint64_t id = 2; id <= 7; ++id) {
    harness.Submit(id, 20, 30);
    std::vector<Step> started;
    std::set<std::uint64_t> requests;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(harness.Plan(), StallReason::kNone);
      started.push_back(harness.plans.back().step);
      requests.merge(RequestsOf(harness.plans.back()));
    }
    EXPECT_EQ(requests, (std::set<std::uint64_t>{1, id}));
    Die(started);
  }
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 7; ++id) EXPECT_EQ(harness.TokensOf(id), 30u);
}

// The group is killed from outside in each isolated step. Each of the three is alone at two deaths,
// always with the same rows; as the others were, too, none is failed.
TEST_F(QuarantineTest, CrashesOfOthersExcuseARequest) {
  for (std::uint64_t id = 1; id <= 3; ++id) harness.Submit(id, 20, 30);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  Die({harness.plans.back().step});
  std::map<std::uint64_t, int> alone;
  for (int death = 0; death < 6; ++death) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    const std::set<std::uint64_t> requests = RequestsOf(harness.plans.back());
    ASSERT_EQ(requests.size(), 1u);
    ++alone[*requests.begin()];
    Die({harness.plans.back().step});
  }
  EXPECT_EQ(alone, (std::map<std::uint64_t, int>{{1, 2}, {2, 2}, {3, 2}}));
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(harness.TokensOf(id), 30u);
}

// Quarantined requests run alone, one after another. The other requests run in the steps between.
TEST_F(QuarantineTest, StepsAlternateBetweenAnIsolatedRequestAndTheOthers) {
  for (std::uint64_t id = 1; id <= 3; ++id) harness.Submit(id, 20, 40);
  for (int step = 0; step < 4; ++step) {
    harness.Plan();
    harness.Answer();
  }
  harness.Plan();
  Die({harness.plans.back().step});
  harness.Submit(4, 20, 40);  // not quarantined
  int alone = 0, together = 0;
  bool was_alone = false;
  std::set<std::uint64_t> probed;
  while (harness.core.Snapshot().counters.quarantine_releases < 3) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    const std::set<std::uint64_t> requests = RequestsOf(harness.plans.back());
    ASSERT_FALSE(requests.empty());
    const bool is_alone = requests.count(4) == 0;
    EXPECT_FALSE(is_alone && was_alone);
    was_alone = is_alone;
    if (is_alone) {
      ++alone;
      EXPECT_EQ(requests.size(), 1u);
      probed.insert(*requests.begin());
    } else {
      ++together;
    }
    harness.Answer();
    ASSERT_LT(alone + together, 30);
  }
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(probed.count(id), 1u) << id;
  harness.RunAll();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(harness.TokensOf(id), 40u);
}

// A quarantined request whose grammar is compiled anew gives its turn to the other ones, and takes
// few steps from those that are not quarantined, also after a second death.
class LateMasks : public QuarantineTest, public ::testing::WithParamInterface<std::uint32_t> {};

TEST_P(LateMasks, HoldUpNobody) {
  TokenizedRequest constrained = CoreHarness::Request(1, 20, 40);
  constrained.sampling.constraint = {.kind = Constraint::Kind::kRegex, .text = "a*"};
  constrained.sequences = GetParam();
  harness.core.Submit(0, constrained);
  for (std::uint64_t id = 2; id <= 5; ++id) harness.Submit(id, 20, 80);
  for (int step = 0; step < 6; ++step) {
    harness.Plan();
    harness.Answer();
  }
  bool is_late = true;
  harness.mask_of = [&](const worker::BatchItem&) {
    return is_late ? std::optional<std::string>("") : std::nullopt;
  };
  harness.Plan();
  const std::uint32_t had = harness.TokensOf(1);
  for (const std::uint64_t others : {4u, 9u}) {
    Die({harness.plans.back().step});
    if (others == 4) harness.Submit(6, 20, 400);
    int without_last = 0;  // of the first death, since then it is quarantined itself
    for (int plan = 0; plan < 80; ++plan) {
      ASSERT_EQ(harness.Plan(), StallReason::kNone);
      if (others == 4) without_last += RequestsOf(harness.plans.back()).count(6) == 0 ? 1 : 0;
      if (plan >= 24) {
        EXPECT_GE(harness.core.Snapshot().counters.quarantine_releases, others);
      }
      if (plan < 79) harness.Answer();
    }
    // Two for each of the others, two late ones at first, and then one in seven.
    EXPECT_LE(without_last, 4 * 2 + 2 + 80 / 7);
    EXPECT_EQ(harness.TokensOf(1), had);
  }
  harness.Answer();
  is_late = false;
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 40 * GetParam());
  for (std::uint64_t id = 2; id <= 5; ++id) EXPECT_EQ(harness.TokensOf(id), 80u);
  EXPECT_EQ(harness.TokensOf(6), 400u);
}

INSTANTIATE_TEST_SUITE_P(Quarantine, LateMasks, ::testing::Values(1, 2, 3));

// The rows of prompts in a plan, [begin, end) of each request.
using Chunks = std::map<std::uint64_t, std::pair<std::uint32_t, std::uint32_t>>;

// A group with this lag dies while it computes chunks of three prompts in so many steps.
struct MidPrefill {
  std::uint32_t lag, under_way;
};

std::ostream& operator<<(std::ostream& out, const MidPrefill& death) {
  return out << "lag " << death.lag << ", " << death.under_way << " steps under way";
}

class DeathInMidPrefill : public ::testing::TestWithParam<MidPrefill> {
 protected:
  static ExecutorDescription Group() {
    ExecutorDescription group = QuarantineGroup();
    group.lag = GetParam().lag;
    return group;
  }

  DeathInMidPrefill() : harness({.max_step_tokens = 100, .max_chunk_tokens = 40}, Group()) {}

  Chunks ChunksOf(const StepPlan& plan) {
    for (const auto& open : CoreHarness::OpsOf<OpenSequence>(plan)) {
      reached[open.sequence] = {open.request.counter, open.cached_tokens};
    }
    Chunks chunks;
    for (const auto& run : CoreHarness::OpsOf<flotilla::Run>(plan)) {
      auto& [request, position] = reached[run.sequence];
      chunks[request] = {position, position + run.count};
      position += run.count;
    }
    return chunks;
  }

  // Plans a step. Returns its chunks.
  Chunks PlanChunks() {
    EXPECT_EQ(harness.Plan(), StallReason::kNone);
    return ChunksOf(harness.plans.back());
  }

  CoreHarness harness;
  std::map<SequenceHandle, std::pair<std::uint64_t, std::uint32_t>> reached;  // by plans made
};

INSTANTIATE_TEST_SUITE_P(Quarantine, DeathInMidPrefill,
                         ::testing::Values(MidPrefill{.lag = 1, .under_way = 1},
                                           MidPrefill{.lag = 1, .under_way = 2},
                                           MidPrefill{.lag = 2, .under_way = 2},
                                           MidPrefill{.lag = 3, .under_way = 3}));

// Each isolated step has the chunk that one request had in one of the fatal steps. All else runs
// in shared steps.
TEST_P(DeathInMidPrefill, OnlyFatalChunksRunAloneAndTheyAreTheSame) {
  for (std::uint64_t id = 1; id <= 3; ++id) harness.Submit(id, 600, 5);
  constexpr int kBefore = 4;
  for (int step = 0; step < kBefore; ++step) {
    PlanChunks();
    harness.Answer();
  }
  std::map<std::uint64_t, std::vector<std::pair<std::uint32_t, std::uint32_t>>> fatal, alone;
  std::vector<Step> started;
  for (std::uint32_t plan = 0; plan <= GetParam().lag; ++plan) {
    const Chunks chunks = PlanChunks();
    if (plan >= GetParam().under_way) continue;
    started.push_back(harness.plans.back().step);
    EXPECT_EQ(chunks.size(), 3u);
    for (const auto& [id, rows] : chunks) fatal[id].push_back(rows);
  }
  harness.core.Lost(harness.epoch(), started);
  harness.TakeEvents();
  reached.clear();
  harness.Restart();
  harness.Submit(4, 20, 60);

  int shared = 0;  // steps with rows before the fatal ones
  for (int step = 0; step < 500 && harness.core.live_requests() > 0; ++step) {
    const Chunks chunks = PlanChunks();
    const StepTimings timings = harness.Answer().timings;
    bool before = false;
    for (const auto& [id, rows] : chunks) {
      const auto& [begin, end] = rows;
      if (!fatal.contains(id) || begin >= fatal[id].back().second) continue;
      before |= end <= fatal[id].front().first;
      if (end <= fatal[id].front().first) continue;
      EXPECT_EQ(timings.rows, end - begin) << "beside rows " << begin << " to " << end;
      alone[id].push_back(rows);
    }
    shared += before;
  }
  EXPECT_LE(shared, kBefore + 1);  // the newcomer has rows in one of them
  EXPECT_EQ(alone, fatal);
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(harness.TokensOf(id), 5u);
  EXPECT_EQ(harness.TokensOf(4), 60u);
}

}  // namespace
}  // namespace flotilla::scheduler
