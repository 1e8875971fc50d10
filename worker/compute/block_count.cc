#include "worker/compute/block_count.h"

#include <algorithm>

namespace flotilla::worker {
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;

// With the null block.
std::uint64_t AndNull(std::uint64_t blocks) { return std::min(blocks, kLargest) + 1; }

}  // namespace

std::uint32_t BlocksWithin(const BlockBudget& budget) {
  const auto within = [&](int percent) {
    const std::int64_t bytes = std::max<std::int64_t>(0, budget.bytes) * percent / 100;
    return static_cast<std::uint64_t>(bytes / budget.bytes_per_block);
  };
  const std::uint64_t share = within(budget.share_percent);
  const std::uint64_t one_sequence = std::min(
      AndNull(budget.one_sequence), within(std::max(budget.share_percent, kOneSequencePercent)));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      std::min(std::max(share, one_sequence), AndNull(budget.most)), 2, kLargest));
}

}  // namespace flotilla::worker
