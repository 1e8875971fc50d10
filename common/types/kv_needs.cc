#include "common/types/kv_needs.h"

#include <algorithm>

namespace flotilla {

std::uint64_t TableEntries(const KvGroup& group, std::uint64_t positions) {
  if (group.kind == KvGroup::Kind::kState) return positions > 0 ? 1 : 0;
  return (positions + group.tokens_per_block - 1) / group.tokens_per_block;
}

// A plan sees window - 1 positions before those that are certain, and adds `slack`. So many
// positions, wherever they begin, lie in one block more than they fill.
std::uint64_t MostNamed(const KvGroup& group, std::uint64_t positions, std::uint32_t slack) {
  const std::uint64_t entries = TableEntries(group, positions);
  if (group.kind != KvGroup::Kind::kWindow) return entries;
  const std::uint64_t seen = std::uint64_t{group.window} - 1 + slack;
  return std::min(entries, TableEntries(group, seen) + 1);
}

std::uint32_t RowsOfPlans(const ExecutorDescription& description) {
  const std::uint64_t drafts =
      (std::uint64_t{description.lag} + 2) * (std::uint64_t{description.max_draft_tokens} + 1);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(
      std::max<std::uint64_t>(description.max_step_tokens, drafts), description.max_context));
}

}  // namespace flotilla
