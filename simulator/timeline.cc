#include "simulator/timeline.h"

#include <algorithm>

namespace flotilla::simulator {

void Timeline::MakeRoom(std::int64_t at_ns) {
  while (at_ns / width_ns_ >= static_cast<std::int64_t>(kBuckets)) {
    for (std::size_t i = 0; i < kBuckets / 2; ++i) sums_[i] = sums_[2 * i] + sums_[2 * i + 1];
    std::fill(sums_.begin() + kBuckets / 2, sums_.end(), 0.0);
    width_ns_ *= 2;
  }
}

void Timeline::Count(std::int64_t at_ns, double amount) {
  MakeRoom(at_ns);
  sums_[static_cast<std::size_t>(at_ns / width_ns_)] += amount;
}

void Timeline::Hold(std::int64_t from_ns, std::int64_t to_ns, double value) {
  if (to_ns <= from_ns) return;
  MakeRoom(to_ns);
  while (from_ns < to_ns) {
    const std::int64_t bucket = from_ns / width_ns_;
    const std::int64_t end = std::min(to_ns, (bucket + 1) * width_ns_);
    sums_[static_cast<std::size_t>(bucket)] += value * 1e-9 * static_cast<double>(end - from_ns);
    from_ns = end;
  }
}

std::vector<double> Timeline::PerSecond(std::int64_t end_ns) const {
  std::vector<double> values;
  for (std::int64_t from = 0; from < end_ns && values.size() < kBuckets; from += width_ns_) {
    const double seconds = 1e-9 * static_cast<double>(std::min(width_ns_, end_ns - from));
    values.push_back(sums_[values.size()] / seconds);
  }
  return values;
}

}  // namespace flotilla::simulator
