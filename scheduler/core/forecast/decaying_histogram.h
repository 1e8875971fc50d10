// DecayingHistogram: counts of values in buckets whose width grows with the value, so that a
// quantile is exact to one part in 2^kPrecision. Old values are forgotten: their weight halves each
// time that as many new ones have come. Integers only; the size is fixed.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace flotilla::scheduler {

// Values of 2^kBits and more count as 2^kBits - 1.
template <std::uint32_t kPrecision, std::uint32_t kBits>
class DecayingHistogram {
 public:
  // `memory` is the number of values after which older ones count half. It is at most 2^20.
  explicit DecayingHistogram(std::uint32_t memory) : memory_(memory) {}

  // The number of values, each by its weight now. At most `memory`.
  std::uint32_t count() const { return total_ / kUnit; }

  void Add(std::uint64_t value) {
    counts_[BucketOf(value)] += kUnit;
    total_ += kUnit;
    if (total_ < memory_ * kUnit) return;
    total_ = 0;
    for (std::uint32_t& count : counts_) total_ += count /= 2;
  }

  // The value that `permille` of the values of at least `least` do not exceed. `least` if there
  // are no such values. Never less than `least`. Interpolated within a bucket.
  std::uint64_t Quantile(std::uint32_t permille, std::uint64_t least = 0) const {
    const std::uint64_t beyond = CountFrom(least);
    if (beyond == 0) return least;
    const std::uint64_t wanted = std::max<std::uint64_t>(beyond * permille / 1000, 1);
    std::uint64_t seen = 0;
    std::size_t bucket = BucketOf(least);
    while (seen + counts_[bucket] < wanted) seen += counts_[bucket++];
    const std::uint64_t width = LeastOf(bucket + 1) - LeastOf(bucket);
    const std::uint64_t in = (width - 1) * (wanted - seen) / counts_[bucket];
    return std::max(LeastOf(bucket) + in, least);
  }

  // The mean of the values of at least `least`; `least` if there are none. Never less.
  std::uint64_t Mean(std::uint64_t least = 0) const {
    const std::uint64_t beyond = CountFrom(least);
    if (beyond == 0) return least;
    std::uint64_t sum = 0;
    for (std::size_t bucket = BucketOf(least); bucket < kBuckets; ++bucket) {
      sum += counts_[bucket] * ((LeastOf(bucket) + LeastOf(bucket + 1) - 1) / 2);
    }
    return std::max(sum / beyond, least);
  }

  // The number of values of at least `least`, to the precision of a bucket.
  std::uint32_t CountAbove(std::uint64_t least) const {
    return static_cast<std::uint32_t>(CountFrom(least) / kUnit);
  }

 private:
  static_assert(kBits <= 32, "sums of products fit 64 bits");
  static constexpr std::uint32_t kUnit = 16;  // halving rounds, so a value counts in 16ths
  static constexpr std::size_t kExact = std::size_t{2} << kPrecision;  // these have a bucket each
  static constexpr std::size_t kBuckets = kExact + ((kBits - kPrecision - 1) << kPrecision);

  static std::size_t BucketOf(std::uint64_t value) {
    value = std::min<std::uint64_t>(value, (std::uint64_t{1} << kBits) - 1);
    if (value < kExact) return value;
    const auto shift = static_cast<std::uint32_t>(std::bit_width(value)) - kPrecision - 1;
    return (std::size_t{shift} << kPrecision) + (value >> shift);
  }
  static std::uint64_t LeastOf(std::size_t bucket) {
    if (bucket < kExact) return bucket;
    const std::size_t shift = (bucket >> kPrecision) - 1;
    return ((bucket & ((std::size_t{1} << kPrecision) - 1)) + (std::size_t{1} << kPrecision))
           << shift;
  }
  std::uint64_t CountFrom(std::uint64_t least) const {
    std::uint64_t beyond = 0;
    for (std::size_t bucket = BucketOf(least); bucket < kBuckets; ++bucket) {
      beyond += counts_[bucket];
    }
    return beyond;
  }

  std::array<std::uint32_t, kBuckets> counts_{};
  std::uint32_t memory_;
  std::uint32_t total_ = 0;
};

}  // namespace flotilla::scheduler
