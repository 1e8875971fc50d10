// The plans of 200 seeds are, as values, those of tests/data/plan_hashes.txt: a change
// that is about names, rooms or messages leaves every plan as it was.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "tests/sim/simulation.h"
#include "tests/support/recorded_lines.h"

namespace flotilla::testing {
namespace {

constexpr std::uint64_t kSeeds = 200, kSteps = 500;

TEST(PlanGuard, PlansAreWhatTheyWere) {
  std::vector<std::string> hashes;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Simulation simulation(seed);
    ASSERT_TRUE(simulation.Run(kSteps).ok()) << "seed " << seed;
    hashes.push_back(absl::StrFormat("%d %016x", seed, simulation.plan_hash()));
  }
  testing::ExpectAsRecorded(hashes, "tests/data/plan_hashes.txt");
}

}  // namespace
}  // namespace flotilla::testing
