#include "loadtest/core/histogram.h"

#include <algorithm>
#include <bit>

namespace flotilla::loadtest {
namespace {

// A doubling has 2^kBits buckets. 1,024 is the first power of two with three digits.
constexpr int kBits = 10;
constexpr std::uint64_t kPerDoubling = std::uint64_t{1} << kBits;

}  // namespace

std::size_t Histogram::BucketOf(std::uint64_t value) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - kBits - 1);
  return static_cast<std::size_t>(static_cast<std::uint64_t>(shift) * kPerDoubling +
                                  (value >> shift));
}

double Histogram::ValueOf(std::size_t bucket) const {
  const std::uint64_t shift = bucket < 2 * kPerDoubling ? 0 : bucket / kPerDoubling - 1;
  const double width = static_cast<double>(std::uint64_t{1} << shift);
  const double low = static_cast<double>((bucket - shift * kPerDoubling) << shift);
  return std::clamp(low + (width - 1) / 2, static_cast<double>(min_), static_cast<double>(max_));
}

void Histogram::Add(std::int64_t value) {
  value = std::max<std::int64_t>(value, 0);
  const std::size_t bucket = BucketOf(static_cast<std::uint64_t>(value));
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  ++buckets_[bucket];
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = std::max(max_, value);
  ++count_;
  sum_ += static_cast<double>(value);
}

void Histogram::Merge(const Histogram& other) {
  if (other.count_ == 0) return;
  buckets_.resize(std::max(buckets_.size(), other.buckets_.size()));
  for (std::size_t i = 0; i < other.buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  count_ += other.count_;
  sum_ += other.sum_;
}

double Histogram::Percentile(double percent) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<std::uint64_t>(static_cast<double>(count_) * percent / 100);
  if (rank + 1 >= count_) return static_cast<double>(max_);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    below += buckets_[i];
    if (below > rank) return ValueOf(i);
  }
  return static_cast<double>(max_);
}

std::vector<std::pair<double, double>> Histogram::Curve(std::size_t points) const {
  std::vector<std::pair<double, double>> curve;
  const double step = static_cast<double>(count_) / static_cast<double>(points);
  std::uint64_t below = 0;
  double next = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i] == 0) continue;
    below += buckets_[i];
    if (static_cast<double>(below) < next && below != count_) continue;
    curve.emplace_back(ValueOf(i), 100 * static_cast<double>(below) / static_cast<double>(count_));
    next = static_cast<double>(below) + step;
  }
  return curve;
}

}  // namespace flotilla::loadtest
