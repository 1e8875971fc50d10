#include "cli/frontends.h"

#include <utility>

#include "gtest/gtest.h"

namespace flotilla::cli {
namespace {

TEST(TokenizerThreadsTest, FollowTheMachineWithinBounds) {
  for (const auto& [cpus, threads] : {std::pair{1, 3u}, {2, 3u}, {16, 4u}, {32, 8u}, {64, 8u}}) {
    EXPECT_EQ(TokenizerThreads(cpus), threads) << cpus << " CPUs";
  }
}

}  // namespace
}  // namespace flotilla::cli
