#include "loadtest/core/histogram.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/traces/seeded_random.h"
#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

double Exact(const std::vector<std::int64_t>& sorted, double percent) {
  const auto rank = static_cast<std::size_t>(static_cast<double>(sorted.size()) * percent / 100);
  return static_cast<double>(sorted[std::min(sorted.size() - 1, rank)]);
}

// Each kind of values that a seed draws: small, evenly spread, over many orders of magnitude.
std::int64_t Draw(SeededRandom& random, std::uint64_t seed) {
  if (seed % 3 == 0) return static_cast<std::int64_t>(random.Below(3000));
  if (seed % 3 == 1) return static_cast<std::int64_t>(random.Below(1'000'000'000'000));
  return static_cast<std::int64_t>(std::exp(40 * random.Uniform()));
}

TEST(HistogramTest, PercentilesHaveThreeDigits) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Histogram histogram, half;
    std::vector<std::int64_t> values;
    const std::uint64_t count = 1 + random.Below(3000);
    double sum = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      values.push_back(Draw(random, seed));
      sum += static_cast<double>(values.back());
      (i % 2 == 0 ? histogram : half).Add(values.back());
    }
    histogram.Merge(half);
    std::sort(values.begin(), values.end());
    ASSERT_EQ(histogram.count(), count);
    EXPECT_EQ(histogram.max(), values.back());
    EXPECT_NEAR(histogram.mean(), sum / static_cast<double>(count), 1e-9 * sum);
    for (const double percent : {0.0, 1.0, 25.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0}) {
      const double exact = Exact(values, percent);
      EXPECT_NEAR(histogram.Percentile(percent), exact, exact * 0.0005 + 1e-9) << percent;
    }
    const auto curve = histogram.Curve(100);
    EXPECT_LE(curve.size(), 101u);
    EXPECT_TRUE(std::is_sorted(curve.begin(), curve.end()));
    EXPECT_DOUBLE_EQ(curve.back().second, 100);
    for (const auto& [value, share] : curve) {
      const auto at_most = std::upper_bound(values.begin(), values.end(), value * 1.0005 + 0.5);
      EXPECT_GE(100.0 * static_cast<double>(at_most - values.begin()),
                share * static_cast<double>(count) - 1e-6);
    }
  }
}

TEST(HistogramTest, AnEmptyOneIsZero) {
  Histogram histogram;
  EXPECT_EQ(histogram.Percentile(99), 0);
  EXPECT_EQ(histogram.mean(), 0);
  EXPECT_TRUE(histogram.Curve(10).empty());
  histogram.Merge(Histogram());
  histogram.Add(-5);
  EXPECT_EQ(histogram.Percentile(50), 0);
}

}  // namespace
}  // namespace flotilla::loadtest
