// Random traffic through scheduler/core and worker/core, every invariant after
// every event. A failure prints the command that repeats it.
//
//   FLOTILLA_SIM_SEED=N   runs one seed only
//   FLOTILLA_LONG=1       10,000 seeds instead of 2,000

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "tests/sim/simulation.h"

namespace flotilla {
namespace {

constexpr std::uint64_t kSteps = 500;

std::uint64_t EnvNumber(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

TEST(Simulation, InvariantsHoldUnderManySeeds) {
  if (const std::uint64_t seed = EnvNumber("FLOTILLA_SIM_SEED"); seed != 0) {
    Simulation simulation(seed);
    EXPECT_EQ(simulation.Run(kSteps), absl::OkStatus());
    return;
  }
  const std::uint64_t seeds = EnvNumber("FLOTILLA_LONG") != 0 ? 10'000 : 2'000;
  SimCoverage total;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Simulation simulation(seed);
    const absl::Status status = simulation.Run(kSteps);
    ASSERT_TRUE(status.ok()) << status.message() << "\nrepeat with: FLOTILLA_SIM_SEED=" << seed
                             << " sim_test --gtest_filter=Simulation.InvariantsHold*";
    ASSERT_GE(simulation.coverage().steps, kSteps) << "seed " << seed;
    total.Add(simulation.coverage());
  }
  // Chance has met everything that the scheduler can do.
  EXPECT_GT(total.core.preemptions, 0u);
  EXPECT_GT(total.core.resumptions, total.core.preemptions / 2);
  EXPECT_GT(total.core.replays, 0u);
  EXPECT_GT(total.core.skips, 0u);
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
  EXPECT_GT(total.undisturbed, 0u);
  EXPECT_GT(total.core.accepted_tokens, total.core.output_tokens / 50);
  EXPECT_GT(total.core.drafted_tokens, total.core.accepted_tokens);
  EXPECT_GT(total.core.trims, 0u);
  EXPECT_GT(total.parallel, 0u);
  EXPECT_GT(total.beams_served, total.beams / 10);
  for (std::size_t state = 0; state < total.cancelled_in.size(); ++state) {
    if (state == static_cast<std::size_t>(BranchState::kPending)) continue;
    EXPECT_GT(total.cancelled_in[state], 0u) << "cancelled in state " << state;
  }
  for (std::size_t state = 2; state < total.lost_in.size(); ++state) {
    EXPECT_GT(total.lost_in[state], 0u) << "lost in state " << state;
  }
  for (const std::uint64_t count : total.holds) EXPECT_GT(count, 0u);
  for (std::size_t lag = 1; lag <= 3; ++lag) EXPECT_GT(total.lags[lag], seeds / 5);
  EXPECT_GT(total.cancelled_after_finish, 0u);
  EXPECT_GT(total.lost_with_results_in_flight, 0u);
  EXPECT_GT(total.lost_idle, 0u);
  EXPECT_GT(total.stale_results, 0u);
  EXPECT_GT(total.refused_full, 0u);
  EXPECT_GT(total.refused_too_large, 0u);
  EXPECT_EQ(total.refused_draining, seeds);
  EXPECT_GT(total.replayed, 0u);
  EXPECT_GT(total.prompt_only, 0u);
  EXPECT_GT(total.too_large_for_new_group, 0u);
  RecordProperty("steps", std::to_string(total.steps));
  RecordProperty("preemptions", std::to_string(total.core.preemptions));
  RecordProperty("cached tokens", std::to_string(total.core.cached_tokens));
  RecordProperty("prefilled tokens", std::to_string(total.core.prefill_tokens));
  RecordProperty("evictions", std::to_string(total.core.evictions));
  RecordProperty("preemptions by swapping", std::to_string(total.core.swapped));
  RecordProperty("blocks copied to tiers", std::to_string(total.core.blocks_out));
  RecordProperty("blocks copied back", std::to_string(total.core.blocks_in));
  RecordProperty("tokens guessed", std::to_string(total.core.drafted_tokens));
  RecordProperty("of them right", std::to_string(total.core.accepted_tokens));
  RecordProperty("replays", std::to_string(total.core.replays));
}

// Invariant 8. The second run lives at other addresses.
TEST(Simulation, SameSeedMakesTheSamePlans) {
  std::uint64_t different = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Simulation first(seed), second(seed), other(seed + 1000);
    ASSERT_TRUE(first.Run(kSteps).ok()) << "seed " << seed;
    ASSERT_TRUE(second.Run(kSteps).ok()) << "seed " << seed;
    ASSERT_TRUE(other.Run(kSteps).ok()) << "seed " << seed + 1000;
    EXPECT_EQ(first.trace_hash(), second.trace_hash()) << "seed " << seed;
    different += first.trace_hash() != other.trace_hash();
  }
  EXPECT_EQ(different, 100u);  // the trace does say something
}

}  // namespace
}  // namespace flotilla
