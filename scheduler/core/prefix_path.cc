#include "scheduler/core/prefix_path.h"

#include <algorithm>
#include <array>
#include <bit>

namespace flotilla::scheduler {

PrefixPath::Block PrefixPath::StateOf(PrefixNode node) const {
  Block state{.node = node,
              .in_pool = 0,
              .unnamed = 0,
              .named = 0,
              .loading = index_->loading(node),
              .tiers = {}};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const TierSlot slot = index_->slot(node, g);
    state.tiers[g] = slot.kept() ? static_cast<std::uint8_t>(slot.tier) : kNoTier;
    const BlockId block = index_->block(node, g);
    if (block == kNullBlock) continue;
    const auto bit = static_cast<std::uint8_t>(1u << g);
    state.in_pool |= bit;
    if (pool_->references(block) == 0) state.unnamed |= bit;
    if (pool_->tables(block) > 0) state.named |= bit;
  }
  return state;
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

template <class Has>
std::uint32_t PrefixPath::Reach(Has has) const {
  std::uint32_t reach = 0;
  // [groups] the blocks up to this one that it has without a gap
  std::array<std::uint32_t, kMostGroups> run{};
  for (std::uint32_t at = 0; at < blocks_.size(); ++at) {
    bool all = true, ever = true;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      run[g] = has(blocks_[at], g) ? run[g] + 1 : 0;
      all &= run[g] >= at + 1 - Unneeded(g, at + 1);
      ever &= groups_[g].kind == KvGroup::Kind::kWindow || run[g] == at + 1;
    }
    if (!ever) break;
    if (all) reach = at + 1;
  }
  return reach;
}

void PrefixPath::Count() {
  unnamed_ = unnamed_in_windows_ = counted_on_ = tiers_ = 0;
  longer_ = {};
  std::uint32_t loading = 0;
  for (const Block& block : blocks_) loading |= block.loading;
  ready_ = Reach([](const Block& block, std::size_t g) {
    return ((block.in_pool & ~block.loading) >> g & 1) != 0;
  });
  loading_ = loading != 0 && Reach([](const Block& block, std::size_t g) {
                               return (block.in_pool >> g & 1) != 0;
                             }) > ready_;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const bool window = groups_[g].kind == KvGroup::Kind::kWindow;
    for (std::uint32_t at = Unneeded(g, ready_); at < ready_; ++at) {
      const std::uint32_t unnamed = blocks_[at].unnamed >> g & 1;
      unnamed_ += unnamed;
      if (!window) continue;
      unnamed_in_windows_ += unnamed;
      counted_on_ += blocks_[at].named >> g & 1;
    }
  }
}

// The leading blocks of a group that a sequence of so many blocks of tokens does not need.
std::uint32_t PrefixPath::Unneeded(std::size_t group, std::uint32_t blocks) const {
  return groups_[group].UnneededBlocks(blocks * groups_[group].tokens_per_block);
}

const PrefixPath::Longer& PrefixPath::WithTiers(std::uint32_t tiers) {
  static const Longer kNothing;
  if (tiers == 0 || loading_) return kNothing;
  if (tiers == tiers_) return longer_;
  tiers_ = tiers;
  const auto readable = [tiers](const Block& block, std::size_t g) {
    return block.tiers[g] != kNoTier && (tiers >> block.tiers[g] & 1) != 0;
  };
  longer_ = {.blocks = Reach([&](const Block& block, std::size_t g) {
               return (block.in_pool >> g & 1) != 0 || readable(block, g);
             }),
             .from_tier = std::vector<std::uint32_t>(std::bit_width(tiers), 0)};
  if (longer_.blocks <= ready_) return longer_;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::uint32_t at = Unneeded(g, longer_.blocks); at < longer_.blocks; ++at) {
      longer_.unnamed += blocks_[at].unnamed >> g & 1;
      if ((blocks_[at].in_pool >> g & 1) != 0) continue;
      ++longer_.reads;
      ++longer_.from_tier[blocks_[at].tiers[g]];
    }
  }
  return longer_;
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
