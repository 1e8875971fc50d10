// The plans of 200 seeds are, as values, those of tests/data/plan_hashes.txt: a change
// that is about names, rooms or messages leaves every plan as it was.
//
//   FLOTILLA_RECORD=1   writes the file anew, for a change that means to change plans
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "tests/sim/simulation.h"

namespace flotilla {
namespace {

constexpr std::uint64_t kSeeds = 200, kSteps = 500;
constexpr const char* kFile = "tests/data/plan_hashes.txt";

std::vector<std::string> Lines() {
  std::vector<std::string> lines;
  std::ifstream file(kFile);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(PlanGuard, PlansAreWhatTheyWere) {
  std::vector<std::string> hashes;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Simulation simulation(seed);
    ASSERT_TRUE(simulation.Run(kSteps).ok()) << "seed " << seed;
    hashes.push_back(absl::StrFormat("%d %016x", seed, simulation.plan_hash()));
  }
  if (std::getenv("FLOTILLA_RECORD") != nullptr) {
    std::ofstream file(kFile);
    for (const std::string& line : hashes) file << line << "\n";
  }
  EXPECT_EQ(hashes, Lines()) << "other plans than before; where that is meant, record them with "
                                "FLOTILLA_RECORD=1";
}

}  // namespace
}  // namespace flotilla
