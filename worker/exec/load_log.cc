#include "worker/exec/load_log.h"

#include <algorithm>
#include <tuple>

namespace flotilla::worker {
namespace {

// Of the ranks that load, the one in the earliest phase with the most bytes left.
std::optional<std::size_t> FurthestBehind(const GroupProbe& group) {
  std::optional<std::size_t> found;
  const auto key = [&](std::size_t rank) {
    const GroupProbe::Rank& one = group.ranks[rank];
    const std::uint64_t all = one.load_bytes;
    const std::uint64_t left = all - std::min<std::uint64_t>(all, one.loaded_bytes);
    return std::tuple(one.load_phase.load(), UINT64_MAX - left);
  };
  for (std::size_t rank = 0; rank < group.ranks.size(); ++rank) {
    if (!group.ranks[rank].loading) continue;
    if (!found.has_value() || key(rank) < key(*found)) found = rank;
  }
  return found;
}

}  // namespace

std::optional<LoadLog::Line> LoadLog::Next(std::int64_t now_ns, const GroupProbe& group) {
  if (!last_ns_.has_value()) last_ns_ = now_ns;
  const std::int64_t passed_ns = now_ns - *last_ns_;
  if (passed_ns < kPeriodNs) return std::nullopt;
  const std::optional<std::size_t> rank = FurthestBehind(group);
  if (!rank.has_value()) return std::nullopt;
  const GroupProbe::Rank& one = group.ranks[*rank];
  Line line{.rank = *rank,
            .phase = one.load_phase,
            .loaded_bytes = one.loaded_bytes,
            .load_bytes = one.load_bytes};
  if (last_.has_value() && last_->rank == line.rank && last_->phase == line.phase &&
      line.loaded_bytes > last_->loaded_bytes) {
    const double rate = static_cast<double>(line.loaded_bytes - last_->loaded_bytes) /
                        (static_cast<double>(passed_ns) * 1e-9);
    const std::uint64_t left =
        line.load_bytes - std::min<std::uint64_t>(line.load_bytes, line.loaded_bytes);
    line.bytes_per_second = static_cast<std::uint64_t>(rate);
    line.seconds_left = static_cast<std::uint64_t>(static_cast<double>(left) / rate);
  }
  last_ns_ = now_ns;
  last_ = line;
  return line;
}

}  // namespace flotilla::worker
