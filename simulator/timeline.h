// Timeline: a quantity over a run whose length is not known in advance, in a
// bounded number of equal buckets. When time runs past the last bucket, neighbours are
// joined and every bucket is twice as wide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flotilla::simulator {

class Timeline {
 public:
  // Counts `amount` at the time `at_ns` >= 0.
  void Count(std::int64_t at_ns, double amount);
  // Records that the quantity is `value` from `from_ns` to `to_ns`.
  void Hold(std::int64_t from_ns, std::int64_t to_ns, double value);

  std::int64_t bucket_ns() const { return width_ns_; }
  // [buckets in use] After Count: the amount per second. After Hold: the mean value. The
  // last bucket ends at `end_ns`.
  std::vector<double> PerSecond(std::int64_t end_ns) const;

 private:
  static constexpr std::size_t kBuckets = 512;
  void MakeRoom(std::int64_t at_ns);

  std::int64_t width_ns_ = 1'000'000;
  std::vector<double> sums_ = std::vector<double>(kBuckets);
};

}  // namespace flotilla::simulator
