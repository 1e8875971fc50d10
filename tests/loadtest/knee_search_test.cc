#include "loadtest/core/knee_search.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

// Searches a server that sustains rates up to `capacity`; returns the rates tried.
int Search(KneeSearch& search, double capacity) {
  int tried = 0;
  while (const std::optional<double> rate = search.Next()) {
    search.Add(*rate <= capacity);
    ++tried;
  }
  return tried;
}

TEST(KneeSearchTest, TheKneeIsWithinThePrecision) {
  for (const double start : {0.01, 1.0, 64.0, 1000.0}) {
    for (double capacity = 0.5; capacity < 200; capacity *= 1.17) {
      KneeSearch search(start, 0.1, 40);
      const int tried = Search(search, capacity);
      ASSERT_TRUE(search.knee().has_value());
      EXPECT_LE(*search.knee(), capacity);
      EXPECT_GT(*search.knee(), capacity / 1.1);
      EXPECT_LE(tried, std::abs(std::log2(capacity / start)) + 6);
    }
  }
}

TEST(KneeSearchTest, ItEndsWhenNothingFails) {
  KneeSearch search(1, 0.1, 5);
  EXPECT_EQ(Search(search, std::numeric_limits<double>::infinity()), 5);
  EXPECT_EQ(search.knee(), 16);
}

TEST(KneeSearchTest, ThereMayBeNoKnee) {
  KneeSearch search(1, 0.1, 5);
  EXPECT_EQ(Search(search, 0), 5);
  EXPECT_EQ(search.knee(), std::nullopt);
}

}  // namespace
}  // namespace flotilla::loadtest
