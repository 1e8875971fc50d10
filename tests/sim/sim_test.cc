// Random traffic through scheduler/core and worker/core, every invariant after
// every event. A failure, a crash too, prints the command that repeats it. Seeds
// run on all cores; each is independent of the others.
//
//   FLOTILLA_SIM_SEED=N    runs one seed only
//   FLOTILLA_SIM_SEEDS=N   N seeds instead of 1,000
//   FLOTILLA_LONG=1        50,000 seeds

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/sim/kept_runs.h"
#include "tests/sim/simulation.h"

namespace flotilla::testing {
namespace {

// Steps with long prompts take as long as several others.
constexpr std::uint64_t kMostSteps = 500, kLargeSteps = kMostSteps / 4;

std::uint64_t EnvNumber(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

// The line that repeats a seed.
void SeedLine(std::uint64_t seed, char (&line)[128]) {
  std::snprintf(line, sizeof line,
                "repeat with: FLOTILLA_SIM_SEED=%llu sim_test "
                "--gtest_filter=Simulation.InvariantsHold*\n",
                static_cast<unsigned long long>(seed));
}

thread_local std::uint64_t running_seed = 0;

// A failed check of the cores aborts in the thread that runs the seed.
void OnCrash(int signal) {
  char line[128];
  SeedLine(running_seed, line);
  [[maybe_unused]] const auto written =
      write(STDERR_FILENO, line, std::char_traits<char>::length(line));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// All seeds of a run, shared by its threads.
class SeedRun {
 public:
  explicit SeedRun(std::uint64_t seeds) : seeds_(seeds) {}

  // Runs all seeds and returns their coverage together. If several seeds fail, the lowest is
  // reported.
  SimCoverage Run() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<std::thread> threads(std::max(std::thread::hardware_concurrency(), 1u));
    for (std::thread& thread : threads) thread = std::thread([this] { Work(); });
    for (std::thread& thread : threads) thread.join();
    const absl::MutexLock lock(&mutex_);
    return total_;
  }

  // The failure of the lowest seed that failed. Empty: none has failed.
  std::string failure() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return failure_;
  }

 private:
  void Work() {
    SimCoverage mine;
    while (true) {
      running_seed = next_++;
      if (running_seed > std::min<std::uint64_t>(seeds_, failed_ - 1)) break;
      const SimRun run = KeptRun(running_seed, kMostSteps, kLargeSteps);
      if (!run.status.ok()) {
        Fail(run.status.message());
      } else if (run.coverage.steps < run.steps) {
        Fail("too few steps");
      }
      mine.Add(run.coverage);
    }
    const absl::MutexLock lock(&mutex_);
    total_.Add(mine);
  }

  void Fail(absl::string_view message) {
    const absl::MutexLock lock(&mutex_);
    if (running_seed >= failed_) return;
    failed_ = running_seed;
    char line[128];
    SeedLine(running_seed, line);
    failure_ = absl::StrCat(message, "\n", line);
  }

  const std::uint64_t seeds_;
  std::atomic<std::uint64_t> next_{1};
  std::atomic<std::uint64_t> failed_{~std::uint64_t{0}};  // the lowest
  mutable absl::Mutex mutex_;
  SimCoverage total_ ABSL_GUARDED_BY(mutex_);
  std::string failure_ ABSL_GUARDED_BY(mutex_);
};

// Checks that every transition and every fault of simulation.h has happened.
void ExpectTables(const SimCoverage& total) {
  for (const SimTransition& t : kTransitions) {
    const auto from = static_cast<std::size_t>(t.from), to = static_cast<std::size_t>(t.to);
    EXPECT_EQ(total.transitions[from][to] > 0, t.possible)
        << kStateNames[from] << " to " << kStateNames[to] << ": " << total.transitions[from][to];
  }
  for (std::size_t fault = 0; fault < kSimFaults; ++fault) {
    EXPECT_GT(total.faults[fault], 0u) << "fault " << fault;
  }
}

// Checks that everything else that the scheduler can do has happened too.
void ExpectCovered(const SimCoverage& total, std::uint64_t seeds) {
  EXPECT_GT(total.core.preemptions, 0u);
  EXPECT_GT(total.core.resumptions, total.core.preemptions / 2);
  EXPECT_GT(total.core.replays, 0u);
  EXPECT_GT(total.core.quarantines, total.core.quarantine_releases);
  EXPECT_GT(total.core.quarantine_releases, seeds / 10);
  EXPECT_GT(total.core.quarantine_failures, seeds / 100);
  EXPECT_GT(total.core.deferrals, 0u);
  EXPECT_GT(total.core.cached_tokens, total.core.prefill_tokens / 100);
  EXPECT_GT(total.core.prefix_waits, 0u);
  EXPECT_GT(total.core.evictions, 0u);
  EXPECT_GT(total.core.noops, 0u);
  EXPECT_GT(total.core.stopped, 0u);
  EXPECT_GT(total.core.length, 0u);
  EXPECT_GT(total.core.expired, 0u);
  EXPECT_GT(total.core.forks, total.steps / 100);
  EXPECT_GT(total.core.block_copies, 0u);
  EXPECT_GT(total.core.bypasses, 0u);
  EXPECT_GT(total.core.swapped, 0u);
  EXPECT_GT(total.core.preemptions, total.core.swapped);  // the rest is recomputed
  EXPECT_GT(total.core.blocks_out, 0u);
  EXPECT_GT(total.core.blocks_in, 0u);
  EXPECT_GT(total.core.dropped_late, 0u);
  EXPECT_GT(total.refused_wait, 0u);
  for (const std::uint64_t count : total.policies) EXPECT_GT(count, seeds / 8);
  EXPECT_GT(total.non_preemptible, 0u);
  EXPECT_GT(total.core.accepted_tokens, total.core.output_tokens / 50);
  EXPECT_GT(total.core.drafted_tokens, total.core.accepted_tokens);
  EXPECT_GT(total.core.trims, 0u);
  EXPECT_GT(total.parallel, 0u);
  EXPECT_GT(total.core.late_rows, 0u);
  EXPECT_GT(total.large, seeds / 30);
  EXPECT_GT(total.large_found, total.large_lookups / 50);
  EXPECT_GE(total.windowed, seeds / 5);  // 10,000 in the long run
  EXPECT_GT(total.windowed_found, 0u);
  EXPECT_GT(total.windowed_read, 0u);
  EXPECT_GT(total.window_blocks, 0u);
  EXPECT_GT(total.arrived_quarantined, seeds);
  // The checks of liveness and of early ends are worth something only if they come close.
  EXPECT_GT(total.liveness.started, 5 * seeds);
  EXPECT_GT(total.liveness.started_quarantined, seeds / 2);
  EXPECT_GT(total.liveness.waited_isolated, seeds / 10);
  EXPECT_GT(total.liveness.overtaken, 20 * seeds);
  EXPECT_GT(total.liveness.overtaken_behind, seeds);
  EXPECT_GT(total.liveness.most_overtaken_permille, 900u);
  EXPECT_GE(total.liveness.most_left_out, 6u);
  EXPECT_GT(total.ended_early, seeds);
  EXPECT_GT(total.early_permille, 600);
  EXPECT_EQ(total.most_constraints, 2u);
  EXPECT_GT(total.beams_served, total.beams / 10);
  for (std::size_t state = 0; state < total.cancelled_in.size(); ++state) {
    EXPECT_GT(total.cancelled_in[state], 0u) << "cancelled when " << kStateNames[state];
    EXPECT_GT(total.lost_in[state], 0u) << "lost when " << kStateNames[state];
  }
  for (const std::uint64_t count : total.stalls) EXPECT_GT(count, 0u);
  for (std::size_t lag = 1; lag <= 3; ++lag) EXPECT_GT(total.lags[lag], seeds / 5);
  EXPECT_GT(total.refused_full, 0u);
  EXPECT_GT(total.refused_too_large, 0u);
  EXPECT_EQ(total.refused_draining, seeds);
  EXPECT_GT(total.replayed, 0u);
  EXPECT_GT(total.prompt_only, 0u);
}

void Record(const SimCoverage& total, std::uint64_t seeds) {
  const auto record = [](const char* what, std::uint64_t count) {
    ::testing::Test::RecordProperty(what, std::to_string(count));
  };
  record("seeds", seeds);
  record("steps", total.steps);
  record("runs with window groups", total.windowed);
  record("preemptions", total.core.preemptions);
  record("cached tokens", total.core.cached_tokens);
  record("prefilled tokens", total.core.prefill_tokens);
  record("evictions", total.core.evictions);
  record("preemptions by swapping", total.core.swapped);
  record("blocks copied to tiers", total.core.blocks_out);
  record("blocks copied back", total.core.blocks_in);
  record("tokens drafted", total.core.drafted_tokens);
  record("of them right", total.core.accepted_tokens);
  record("replays", total.core.replays);
  record("quarantined", total.core.quarantines);
  record("of them released", total.core.quarantine_releases);
  record("of them failed", total.core.quarantine_failures);
  record("requests that were first and fit, and started at once", total.liveness.started);
  record("of these, while others were quarantined", total.liveness.started_quarantined);
  record("plans that such requests waited then", total.liveness.waited_isolated);
  record("rows that overtook the first of those that wait", total.liveness.overtaken);
  record("rows that overtook those behind it", total.liveness.overtaken_behind);
  record("most of them, permille of what is allowed", total.liveness.most_overtaken_permille);
  record("ended before their deadline", total.ended_early);
  record("most time that one of them had, permille of what it needs at most",
         static_cast<std::uint64_t>(total.early_permille));
  record("permille found in the prefix cache by long prompts",
         1000 * total.large_found / std::max<std::uint64_t>(total.large_lookups, 1));
  std::string transitions, faults;
  for (const SimTransition& t : kTransitions) {
    if (!t.possible) continue;
    const auto from = static_cast<std::size_t>(t.from), to = static_cast<std::size_t>(t.to);
    absl::StrAppend(&transitions, kStateNames[from], ">", kStateNames[to], " ",
                    total.transitions[from][to], "; ");
  }
  for (const std::uint64_t count : total.faults) absl::StrAppend(&faults, count, "; ");
  ::testing::Test::RecordProperty("transitions", transitions);
  ::testing::Test::RecordProperty("fault points", faults);
}

TEST(Simulation, InvariantsHoldUnderManySeeds) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE}) std::signal(signal, OnCrash);
  if (const std::uint64_t seed = EnvNumber("FLOTILLA_SIM_SEED"); seed != 0) {
    running_seed = seed;
    EXPECT_EQ(KeptRun(seed, kMostSteps, kLargeSteps).status, absl::OkStatus());
    return;
  }
  std::uint64_t seeds = EnvNumber("FLOTILLA_SIM_SEEDS");
  if (seeds == 0) seeds = EnvNumber("FLOTILLA_LONG") != 0 ? 50'000 : 1'000;
  SeedRun run(seeds);
  const SimCoverage total = run.Run();
  ASSERT_TRUE(run.failure().empty()) << run.failure();
  ExpectTables(total);
  ExpectCovered(total, seeds);
  Record(total, seeds);
}

// These seeds failed in the long run. 22839: in a pipeline, sequences of other micro-batches took
// the block that the first one waited for, again and again. 3575: of two requests that reserve
// blocks and start in one plan, the second one did not know that the first one counts on blocks
// that both share. 3774 and 4307: sequences that cannot fork forgot their parent only after the
// plan had looked for sequences to isolate, so no step ran. 9173: a forecast from contexts of 30
// positions was believed for one of 400. 41969: beams of a later request opened with the blocks
// that the prompts of the first one waited for. 30439: a shorter prompt had all the time of steps
// before the first request. 11011, 31025, 42573, and 7871 with runs: only the check of invariant
// 7 was wrong. It did not know what is reserved for several sequences, that a turn may come just
// before a copy ends, that the first request may have only pending sequences, and that it may be
// what is read back.
TEST(Simulation, SeedsThatFailedOnceHold) {
  for (const std::uint64_t seed : {1241u, 1876u, 3575u, 3774u, 4307u, 9173u, 11011u, 14590u, 22839u,
                                   28717u, 31025u, 41969u, 42573u, 44292u, 46410u}) {
    Simulation simulation(seed);
    EXPECT_EQ(simulation.Run(kMostSteps), absl::OkStatus()) << "FLOTILLA_SIM_SEED=" << seed;
  }
  EXPECT_EQ(KeptRun(30439, kMostSteps, kLargeSteps).status, absl::OkStatus());
  for (const std::uint64_t seed : {2011u, 2440u, 3490u, 5502u, 6414u, 7871u, 9117u, 9614u}) {
    Simulation simulation(seed, Simulation::Tiers::kOfSeed, /*runs=*/true);
    EXPECT_EQ(simulation.Run(kMostSteps), absl::OkStatus()) << "with runs, seed " << seed;
  }
}

// A tier that has room for everything keeps what is evicted, so more is found again, although
// groups die and most prompts are new: 66 of 1,000 tokens, against 56 without a tier.
TEST(Simulation, ALargeTierKeepsWhatIsEvicted) {
  std::uint64_t looked_up[2] = {}, found[2] = {};
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    for (const bool tier : {false, true}) {
      Simulation simulation(seed, tier ? Simulation::Tiers::kLarge : Simulation::Tiers::kNone);
      ASSERT_EQ(simulation.Run(kMostSteps), absl::OkStatus()) << "seed " << seed;
      looked_up[tier] += simulation.coverage().core.lookup_tokens;
      found[tier] += simulation.coverage().core.cached_tokens;
    }
  }
  const auto permille = [&](bool tier) { return 1000 * found[tier] / looked_up[tier]; };
  RecordProperty("permille found without a tier", std::to_string(permille(false)));
  RecordProperty("permille found with a tier", std::to_string(permille(true)));
  EXPECT_GE(permille(true), permille(false) * 105 / 100);
}

// The simulated workers keep the run that a sequence has not filled apart from its blocks, so they
// see a fork within a run that its parent has left, and draft tokens that leave one.
TEST(Simulation, RunsThatAreNotFullBelongToTheirSequence) {
  const std::uint64_t seeds = EnvNumber("FLOTILLA_LONG") != 0 ? 10'000 : 200;
  if (const std::uint64_t seed = EnvNumber("FLOTILLA_SIM_SEED"); seed != 0) {
    EXPECT_EQ(Simulation(seed, Simulation::Tiers::kOfSeed, /*runs=*/true).Run(kMostSteps),
              absl::OkStatus());
    return;
  }
  SimCoverage total;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Simulation simulation(seed, Simulation::Tiers::kOfSeed, /*runs=*/true);
    ASSERT_EQ(simulation.Run(kMostSteps), absl::OkStatus()) << "seed " << seed;
    total.Add(simulation.coverage());
  }
  EXPECT_GT(total.core.forks, total.steps / 200);
  EXPECT_GT(total.core.block_copies, 0u);  // forks within runs
  EXPECT_GT(total.core.cached_tokens, 0u);
  EXPECT_GT(total.core.accepted_tokens, 0u);
  EXPECT_GT(total.core.preemptions, 0u);
  EXPECT_GT(total.beams_served, 0u);
}

// Two runs are the same until the group dies; in one of them the loss says which steps it was
// computing. So the pauses differ only by what quarantine costs: two isolated steps for each
// sequence under way at most, and a shared step between each two, for rows of those that are
// released. Most of these shared steps do what a plain replay does, too: nearly all pauses have at
// most its plans, two for each sequence, and one. In a pipeline, where micro-batches take turns, a
// pause has twice the plans and six for each sequence. A request that arrives after the loss waits
// for at most one isolated step before each shared one. Where places or blocks are missing,
// requests wait for the ends of others, and the order of starts decides for whose; such runs are
// left out.
TEST(Simulation, AfterALossPausesAreBounded) {
  const std::uint64_t seeds = EnvNumber("FLOTILLA_LONG") != 0 ? 10'000 : 1'000;
  std::uint64_t pauses = 0, of_lag_one = 0, longer = 0, more_than_two = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Simulation replay(seed), quarantine(seed);
    const auto plain = replay.PauseAfterLoss(60, /*blamed=*/false);
    ASSERT_TRUE(plain.ok()) << plain.status() << " seed " << seed;
    if (!plain->has_value()) continue;
    const auto blamed = quarantine.PauseAfterLoss(60, /*blamed=*/true);
    ASSERT_TRUE(blamed.ok() && blamed->has_value()) << blamed.status() << " seed " << seed;
    const Simulation::Pause& one = **plain;
    const Simulation::Pause& other = **blamed;
    ASSERT_EQ(other.waited, one.waited) << "seed " << seed;
    const std::uint64_t most =
        other.lag == 1 ? one.plans + 4 * other.under_way - 1 : 2 * one.plans + 6 * other.under_way;
    EXPECT_LE(other.plans, most) << "seed " << seed << ": " << other.under_way << " under way, lag "
                                 << other.lag;
    more_than_two += other.lag == 1 && other.plans > one.plans + 2 * other.under_way + 1;
    EXPECT_LE(other.newcomer, 2 * one.newcomer + other.lag + 1) << "seed " << seed;
    pauses += other.waited > 0;
    of_lag_one += other.waited > 0 && other.lag == 1;
    longer += other.plans > one.plans;
  }
  EXPECT_GT(pauses, seeds / 20);
  EXPECT_GT(longer, seeds / 40);
  RecordProperty("more_than_two_steps", absl::StrCat(more_than_two, " of ", of_lag_one));
  EXPECT_LE(more_than_two, of_lag_one / 100);
}

// Tests invariant 8. The objects of the second run have other addresses.
TEST(Simulation, SameSeedMakesTheSamePlans) {
  std::uint64_t different = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const SimRun first = KeptRun(seed, kMostSteps, kLargeSteps);
    const SimRun other = KeptRun(seed + 100, kMostSteps, kLargeSteps);
    Simulation second(seed);
    ASSERT_TRUE(first.status.ok()) << "seed " << seed;
    ASSERT_TRUE(second.Run(first.steps).ok()) << "seed " << seed;
    ASSERT_TRUE(other.status.ok()) << "seed " << seed + 100;
    EXPECT_EQ(first.trace_hash, second.trace_hash()) << "seed " << seed;
    different += first.trace_hash != other.trace_hash;
  }
  EXPECT_EQ(different, 100u);  // the hash depends on the run
}

}  // namespace
}  // namespace flotilla::testing
