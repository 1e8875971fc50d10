#include "scheduler/core/prefix_path.h"

#include <algorithm>

namespace flotilla::scheduler {

PrefixPath::Block PrefixPath::StateOf(PrefixNode node) const {
  const BlockId block = index_->block(node);
  const TierSlot slot = index_->slot(node);
  return {.node = node,
          .in_pool = block != kNullBlock,
          .named = block != kNullBlock && pool_->references(block) > 0,
          .loading = index_->loading(node),
          .tier = slot.kept() ? static_cast<std::uint8_t>(slot.tier) : kNoTier};
}

void PrefixPath::Update(absl::string_view scope, absl::Span<const TokenId> tokens,
                        std::uint32_t block_tokens) {
  const std::size_t most = tokens.size() / block_tokens;
  bool changed = Shorten(most);
  const bool further = ReadLog(changed) || most > most_;
  most_ = most;
  if (further) changed |= Extend(scope, tokens, block_tokens);
  if (changed) Count();
}

bool PrefixPath::Shorten(std::size_t blocks) {
  if (blocks_.size() <= blocks) return false;
  const PrefixNode held = last();
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(blocks), blocks_.end());
  if (!blocks_.empty()) index_->Hold(last());
  index_->LetGo(held);
  return true;
}

bool PrefixPath::ReadLog(bool& changed) {
  bool further = !looked_up_;
  if (!looked_up_) {
    looked_up_ = true;
  } else if (index_->changes() - seen_ > PrefixIndex::kLogged) {
    for (Block& block : blocks_) block = StateOf(block.node);
    changed = further = true;
  } else {
    for (; seen_ < index_->changes(); ++seen_) {
      const PrefixNode node = index_->Changed(seen_);
      const std::uint32_t depth = index_->depth(node);
      if (depth == 0) continue;  // it was removed
      if (depth <= blocks_.size() && blocks_[depth - 1].node == node) {
        blocks_[depth - 1] = StateOf(node);
        changed = true;
      }
      // A root may be new, so each first block may be the sequence's.
      further |= depth == blocks_.size() + 1 && (blocks_.empty() || index_->parent(node) == last());
    }
  }
  seen_ = index_->changes();
  return further;
}

bool PrefixPath::Extend(absl::string_view scope, absl::Span<const TokenId> tokens,
                        std::uint32_t block_tokens) {
  const std::size_t had = blocks_.size();
  PrefixNode at = had == 0 ? index_->FindRoot(scope) : last();
  const PrefixNode held = had == 0 ? kNoPrefix : at;
  while (at != kNoPrefix && (blocks_.size() + 1) * block_tokens <= tokens.size()) {
    at = index_->Find(at, tokens.subspan(blocks_.size() * block_tokens, block_tokens));
    if (at != kNoPrefix) blocks_.push_back(StateOf(at));
  }
  if (blocks_.size() == had) return false;
  index_->Hold(last());
  if (held != kNoPrefix) index_->LetGo(held);
  return true;
}

void PrefixPath::Count() {
  ready_ = unnamed_ = in_tiers_ = tiers_ = 0;
  const auto usable = [](const Block& block) { return block.in_pool && !block.loading; };
  for (; ready_ < blocks_.size() && usable(blocks_[ready_]); ++ready_) {
    unnamed_ += !blocks_[ready_].named;
  }
  loading_ = ready_ < blocks_.size() && blocks_[ready_].loading;
}

std::uint32_t PrefixPath::InTiers(std::uint32_t tiers) {
  if (tiers == 0 || loading_) return 0;
  if (tiers == tiers_) return in_tiers_;
  tiers_ = tiers;
  const auto end = std::find_if(blocks_.begin() + ready_, blocks_.end(), [&](const Block& block) {
    return block.in_pool || block.tier == kNoTier || (tiers >> block.tier & 1) == 0;
  });
  in_tiers_ = static_cast<std::uint32_t>(end - blocks_.begin()) - ready_;
  return in_tiers_;
}

absl::Status PrefixPath::Check() const {
  for (std::size_t at = 0; at < blocks_.size(); ++at) {
    if (index_->depth(blocks_[at].node) != at + 1 ||
        (at > 0 && index_->parent(blocks_[at].node) != blocks_[at - 1].node)) {
      return absl::InternalError("the path of a waiting sequence has nodes that were removed");
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::scheduler
