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

  // Takes out a value that was added; has no effect if it is not there any more.
  void Remove(std::uint64_t value) {
    std::uint32_t& count = counts_[BucketOf(value)];
    const std::uint32_t taken = std::min(count, kUnit);
    count -= taken;
    total_ -= taken;
  }

  // These values, and those of which only a lower bound is known, the ones in `least`: the weight
  // of each goes in equal parts to all that are above its bound, known or not (Efron 1967, which
  // gives the estimate of Kaplan and Meier, 1958). Where none is above, it is taken for an eighth
  // more than its bound.
  DecayingHistogram WithOpen(const DecayingHistogram& least) const {
    if (least.total_ == 0) return *this;
    constexpr std::uint32_t kFraction = 12;
    const auto rounded = [](std::uint64_t x) {
      return static_cast<std::uint32_t>((x + (1u << (kFraction - 1))) >> kFraction);
    };
    DecayingHistogram all(memory_);
    std::uint64_t beyond = std::uint64_t{total_} + least.total_,
                  weight = std::uint64_t{1} << kFraction;  // of a value
    for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
      beyond -= counts_[bucket] + least.counts_[bucket];
      all.counts_[bucket] += rounded(counts_[bucket] * weight);
      const std::uint64_t open = least.counts_[bucket] * weight;
      if (beyond > 0) {
        weight += open / beyond;
      } else if (open > 0) {
        const std::uint64_t bound = LeastOf(bucket);
        all.counts_[BucketOf(bound + bound / 8)] += rounded(open);
      }
    }
    for (const std::uint32_t count : all.counts_) all.total_ += count;
    return all;
  }

  // The value that `permille` of the values of at least `least` do not exceed. `least` if there
  // are no such values. Never less than `least`. Interpolated within a bucket.
  std::uint64_t Quantile(std::uint32_t permille, std::uint64_t least = 0) const {
    const std::uint64_t beyond = CountFrom(least);
    if (beyond == 0) return least;
    const std::uint64_t wanted = std::max<std::uint64_t>(beyond * permille / 1000, 1);
    std::uint64_t seen = 0;
    std::size_t bucket = BucketOf(least);
    while (seen + CountIn(bucket, least) < wanted) seen += CountIn(bucket++, least);
    const std::uint64_t from = std::max(LeastOf(bucket), least);
    return from + (LeastOf(bucket + 1) - 1 - from) * (wanted - seen) / CountIn(bucket, least);
  }

  // The mean of the values of at least `least`; `least` if there are none. Never less.
  std::uint64_t Mean(std::uint64_t least = 0) const {
    const std::uint64_t beyond = CountFrom(least);
    if (beyond == 0) return least;
    std::uint64_t sum = 0;
    for (std::size_t bucket = BucketOf(least); bucket < kBuckets; ++bucket) {
      sum += CountIn(bucket, least) * MiddleOf(bucket, least);
    }
    return std::max(sum / beyond, least);
  }

  // The values of at least `least` in kParts parts of equal weight, the smallest values first: the
  // mean of each part. `least` if there are none. Never less.
  template <std::size_t kParts>
  std::array<std::uint64_t, kParts> PartMeans(std::uint64_t least = 0) const {
    std::array<std::uint64_t, kParts> means;
    means.fill(least);
    const std::uint64_t part = CountFrom(least);  // each value counts kParts times
    std::uint64_t sum = 0, left = part;
    std::size_t at = 0;
    for (std::size_t bucket = BucketOf(least); bucket < kBuckets && part > 0; ++bucket) {
      for (std::uint64_t count = CountIn(bucket, least) * kParts; count > 0;) {
        const std::uint64_t taken = std::min(count, left);
        sum += taken * MiddleOf(bucket, least);
        count -= taken;
        left -= taken;
        if (left > 0) continue;
        means[at] = std::max(sum / part, least);
        ++at;
        sum = 0;
        left = part;
      }
    }
    return means;
  }

  // The number of values of at least `least`.
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
      beyond += CountIn(bucket, least);
    }
    return beyond;
  }
  // The values of a bucket that are at least `least`, which is not beyond it, and their mean: they
  // are taken to be evenly spread.
  std::uint64_t CountIn(std::size_t bucket, std::uint64_t least) const {
    const std::uint64_t from = LeastOf(bucket), end = LeastOf(bucket + 1);
    if (least <= from || counts_[bucket] == 0) return counts_[bucket];
    return (counts_[bucket] * (end - std::min(least, end - 1)) + end - from - 1) / (end - from);
  }
  static std::uint64_t MiddleOf(std::size_t bucket, std::uint64_t least) {
    return (std::max(LeastOf(bucket), least) + LeastOf(bucket + 1) - 1) / 2;
  }

  std::array<std::uint32_t, kBuckets> counts_{};
  std::uint32_t memory_;
  std::uint32_t total_ = 0;
};

}  // namespace flotilla::scheduler
