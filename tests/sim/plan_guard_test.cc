// The plans of 200 seeds are, as values, those of tests/data/plan_hashes.txt: a change
// that is about names, rooms or messages leaves every plan as it was.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "tests/sim/kept_runs.h"
#include "tests/support/recorded_lines.h"

namespace flotilla::testing {
namespace {

constexpr std::uint64_t kSeeds = 200, kSteps = 500;

TEST(PlanGuard, PlansAreWhatTheyWere) {
  std::vector<std::string> hashes;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimRun run = KeptRun(seed, kSteps, kSteps);
    ASSERT_TRUE(run.status.ok()) << "seed " << seed << ": " << run.status;
    hashes.push_back(absl::StrFormat("%d %016x", seed, run.plan_hash));
  }
  testing::ExpectAsRecorded(hashes, "tests/data/plan_hashes.txt");
}

}  // namespace
}  // namespace flotilla::testing
