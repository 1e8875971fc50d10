// Histogram: counts of whole numbers with three significant digits, in little memory.
//
// It is log-linear: values below 2,048 have buckets of their own, and each doubling above has 1,024
// buckets of equal width. A bucket is at most 1/1,024 of its values wide, and stands for its
// middle, so that a percentile is wrong by 0.05 % at most. Sums, and the least and the greatest
// value, are exact. 10^12 (16 minutes in nanoseconds) takes 250 KB. Values only; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace flotilla::loadtest {

class Histogram {
 public:
  // Negative values count as 0.
  void Add(std::int64_t value);
  // Adds what `other` counted.
  void Merge(const Histogram& other);

  std::uint64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  std::int64_t max() const { return max_; }

  // The value at rank floor(count * percent / 100), counted from 0, or the greatest value; 0 if
  // there are none. `percent` is from 0 to 100.
  double Percentile(double percent) const;

  // Points (value, share of all values in percent that are at most as great), ascending in both, at
  // most about `points` of them: the distribution as a curve.
  std::vector<std::pair<double, double>> Curve(std::size_t points) const;

 private:
  static std::size_t BucketOf(std::uint64_t value);
  // The middle of a bucket, within what was counted.
  double ValueOf(std::size_t bucket) const;

  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
  std::int64_t min_ = 0, max_ = 0;
};

}  // namespace flotilla::loadtest
