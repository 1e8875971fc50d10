// Tests which continuations best_of chooses as the answer.
#include "router/core/best_of.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::router {
namespace {

using Indices = std::vector<std::uint32_t>;

TEST(BestOf, HighestFirst) {
  const std::vector<double> scores = {-2.0, -0.5, -3.0, -1.0};
  EXPECT_EQ(BestOf(scores, 1), (Indices{1}));
  EXPECT_EQ(BestOf(scores, 3), (Indices{1, 3, 0}));
  EXPECT_EQ(BestOf(scores, 4), (Indices{1, 3, 0, 2}));
}

TEST(BestOf, TiesGoToTheLowerIndex) {
  EXPECT_EQ(BestOf({-1.0, -0.5, -0.5, -1.0}, 4), (Indices{1, 2, 0, 3}));
  EXPECT_EQ(BestOf(std::vector<double>(5, -1.0), 2), (Indices{0, 1}));
}

TEST(BestOf, NothingIsWorseThanNoNumber) {
  const double nan = std::nan(""), least = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(BestOf({nan, least, -9.0, nan}, 4), (Indices{2, 1, 0, 3}));
}

TEST(BestOf, NeverMoreThanThereAre) {
  EXPECT_EQ(BestOf({-1.0}, 3), (Indices{0}));
  EXPECT_TRUE(BestOf({}, 3).empty());
}

TEST(MeanLogprob, IsPerToken) {
  MeanLogprob score;
  EXPECT_EQ(score.Get(), -std::numeric_limits<double>::infinity());
  for (const float logprob : {-1.0f, -2.0f, -4.5f}) score.Add(logprob);
  EXPECT_EQ(score.Get(), -2.5);
  EXPECT_EQ(score.tokens(), 3u);
}

}  // namespace
}  // namespace flotilla::router
