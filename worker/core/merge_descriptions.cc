#include "worker/core/merge_descriptions.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

// Names the first field that must be equal and is not; empty if there is none.
absl::string_view Difference(const ExecutorDescription& a, const ExecutorDescription& b) {
  if (a.model_id != b.model_id) return "model_id";
  if (a.vocab_size != b.vocab_size) return "vocab_size";
  if (a.max_context != b.max_context) return "max_context";
  if (a.numerics_id != b.numerics_id) return "numerics_id";
  if (a.exactness != b.exactness) return "exactness";
  if (a.max_sequences != b.max_sequences) return "max_sequences";
  if (a.max_step_tokens != b.max_step_tokens) return "max_step_tokens";
  if (a.lag != b.lag) return "lag";
  if (a.max_draft_tokens != b.max_draft_tokens) return "max_draft_tokens";
  if (a.run_tokens != b.run_tokens) return "run_tokens";
  if (a.tiers.size() != b.tiers.size()) return "tiers";
  const auto same_kind = [](const KvGroup& one, const KvGroup& other) {
    return one.kind == other.kind && one.window == other.window &&
           one.tokens_per_block == other.tokens_per_block;
  };
  if (!std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(), same_kind)) {
    return "groups";
  }
  return "";
}

}  // namespace

absl::StatusOr<ExecutorDescription> MergeDescriptions(absl::Span<const ExecutorDescription> ranks) {
  ExecutorDescription all = ranks[0];
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const ExecutorDescription& one = ranks[rank];
    if (const absl::string_view what = Difference(all, one); !what.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("ranks 0 and ", rank, " differ in ", what));
    }
    all.block_count = std::min(all.block_count, one.block_count);
    all.prefill_ns_per_token = std::max(all.prefill_ns_per_token, one.prefill_ns_per_token);
    all.decode_ns_per_step = std::max(all.decode_ns_per_step, one.decode_ns_per_step);
    for (std::size_t i = 0; i < all.groups.size(); ++i) {
      all.groups[i].bytes_per_block =
          std::max(all.groups[i].bytes_per_block, one.groups[i].bytes_per_block);
    }
    for (std::size_t i = 0; i < all.tiers.size(); ++i) {
      KvTier& tier = all.tiers[i];
      const KvTier& other = one.tiers[i];
      if (tier.kind != other.kind) {
        return absl::InvalidArgumentError(absl::StrCat("ranks 0 and ", rank, " differ in tiers"));
      }
      tier.block_count = std::min(tier.block_count, other.block_count);
      tier.out_ns_per_block = std::max(tier.out_ns_per_block, other.out_ns_per_block);
      tier.in_ns_per_block = std::max(tier.in_ns_per_block, other.in_ns_per_block);
    }
  }
  return all;
}

}  // namespace flotilla::worker
