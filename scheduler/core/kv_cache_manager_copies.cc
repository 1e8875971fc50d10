// The part of KvCacheManager that copies blocks to tiers and back.
#include <algorithm>
#include <utility>

#include "scheduler/core/kv_cache_manager.h"

namespace flotilla::scheduler {

std::vector<BlockId> KvCacheManager::BlocksToStore(const Sequence& sequence) const {
  const Holding& holding = Of(sequence);
  const std::uint32_t blocks = tiers_.any() ? holding.indexed_blocks : 0;
  std::vector<BlockId> stored;
  PrefixNode node = holding.indexed;
  for (std::uint32_t at = blocks; at-- > 0; node = index_->parent(node)) {
    // A tier takes a block of a window after those that keep every position.
    for (const bool windows : {true, false}) {
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (IsWindow(g) != windows || at < groups_[g].UnneededBlocks(blocks * block_tokens())) {
          continue;
        }
        // The sequence may have given a block of a window back.
        const BlockId block = windows ? index_->block(node, g) : holding.tables[g][at];
        if (block == kNullBlock) return {};
        stored.push_back(block);
      }
    }
  }
  std::reverse(stored.begin(), stored.end());
  return stored;
}

void KvCacheManager::WantStored(BlockId block) {
  if (tiers_.any() && !InTier(block)) written_now_.Add(block);
}

void KvCacheManager::WantWindows(PrefixNode node, std::uint32_t blocks) {
  if (!tiers_.any() || !has_windows_) return;
  std::uint32_t first = blocks;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (IsWindow(g)) first = std::min(first, groups_[g].UnneededBlocks(blocks * block_tokens()));
  }
  for (std::uint32_t at = blocks; at-- > first; node = index_->parent(node)) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (!IsWindow(g) || at < groups_[g].UnneededBlocks(blocks * block_tokens())) continue;
      const BlockId block = index_->block(node, g);
      if (block != kNullBlock) WantStored(block);
    }
  }
}

std::int64_t KvCacheManager::CopyNs(BackgroundCopy::Kind kind, std::uint32_t tier) const {
  const KvTier& t = tiers_.tier(tier);
  return kind == BackgroundCopy::Kind::kOut ? t.out_ns_per_block : t.in_ns_per_block;
}

KvCacheManager::CopyInFlight& KvCacheManager::CopyTo(BackgroundCopy::Kind kind,
                                                     std::uint32_t tier) {
  for (const std::uint64_t id : to_send_) {
    CopyInFlight& copy = copies_.at(id);
    if (copy.kind == kind && copy.tier == tier) return copy;
  }
  to_send_.push_back(++last_copy_);
  return copies_
      .emplace(last_copy_,
               CopyInFlight{.kind = kind, .tier = tier, .moves = {}, .nodes = {}, .groups = {}})
      .first->second;
}

void KvCacheManager::BeginCopy(BackgroundCopy::Kind kind, BlockId block, TierSlot slot) {
  pool_.SetCopying(block, true);
  CopyInFlight& copy = CopyTo(kind, slot.tier);
  copy.moves.push_back({.block = block, .slot = slot.slot});
  copy.nodes.push_back(node_of_[block.value()]);
  copy.groups.push_back(group_of_[block.value()]);
  copies_ns_ += CopyNs(kind, slot.tier);
  if (has_windows_) index_->Log(node_of_[block.value()]);
}

void KvCacheManager::BeginCopyOut(BlockId block, TierSlot slot) {
  Share(block);
  BeginCopy(BackgroundCopy::Kind::kOut, block, slot);
  ++copies_out_;
}

KvCacheManager::Stored KvCacheManager::Store(const std::vector<BlockId>& blocks,
                                             std::int64_t block_ns) {
  Stored stored;
  bool full = !tiers_.any();
  for (const BlockId block : blocks) {
    if (!pool_.kept(block)) continue;
    const bool unnamed = Unnamed(block);
    stored.able += unnamed;
    if (full) continue;
    if (!InTier(block)) {
      const std::optional<TierSlot> slot =
          tiers_.Take(node_of_[block.value()], group_of_[block.value()],
                      KvTiers::Cost::kWriteAndReadBack, RecomputeNs(block_ns));
      full = !slot.has_value();
      if (full) continue;
      BeginCopyOut(block, *slot);
      ++stored.begun;
    }
    stored.kept += unnamed;
  }
  return stored;
}

KvCacheManager::StoredAhead KvCacheManager::StoreAhead(const StoreLimits& limits) {
  constexpr std::uint32_t kLeast = 2;  // blocks under way, so that a slow link is never idle
  StoredAhead stored;
  const std::uint32_t quarter = pool_.total() / 4;
  if (!tiers_.any() || pool_.free() > pool_.total() - quarter) return stored;
  std::int64_t begun_ns = 0;
  const std::int64_t step_ns = std::max<std::int64_t>(limits.step_ns, 1);
  const auto paced = [&] { return begun_ns >= step_ns || copies_ns_ / step_ns >= limits.steps; };
  while (!to_store_.empty() && copies_out_ < std::max(quarter, 1u)) {
    if (copies_out_ >= kLeast && paced()) break;
    const BlockId block = to_store_.front();
    const bool unnamed = Unnamed(block);
    if (unnamed && stored.unnamed >= limits.spare) break;
    to_store_.Remove(block);
    if (InTier(block)) continue;
    const std::optional<TierSlot> slot =
        tiers_.Take(node_of_[block.value()], group_of_[block.value()], KvTiers::Cost::kReadBack,
                    RecomputeNs(limits.block_ns));
    if (!slot.has_value()) continue;
    BeginCopyOut(block, *slot);
    begun_ns += CopyNs(BackgroundCopy::Kind::kOut, slot->tier);
    ++stored.begun;
    stored.unnamed += unnamed;
  }
  return stored;
}

void KvCacheManager::Load(const Sequence& sequence, const Match& match) {
  const PrefixPath& path = PathOf(sequence);
  struct Read {
    PrefixNode node;
    std::uint32_t group;
  };
  std::vector<Read> reads;
  // The other blocks of the hit must not be evicted to make room for these.
  std::vector<BlockId> others;
  std::vector<std::uint32_t> first;  // [groups] the first block that the hit needs
  for (const KvGroup& group : groups_) {
    first.push_back(group.UnneededBlocks(match.longer * block_tokens()));
  }
  for (std::uint32_t at = 0; at < match.longer; ++at) {
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      if (at < first[g]) continue;
      const BlockId block = index_->block(path.node(at), g);
      if (block == kNullBlock) {
        reads.push_back({path.node(at), g});
      } else {
        Share(block);
        others.push_back(block);
      }
    }
  }
  for (const auto& [node, group] : reads) {
    const TierSlot slot = index_->slot(node, group);
    tiers_.Pin(slot);
    const BlockId block = TakeBlock();
    index_->SetBlock(node, block, group);
    node_of_[block.value()] = node;
    group_of_[block.value()] = static_cast<std::uint8_t>(group);
    pool_.Keep(block);
    index_->SetLoading(node, true, group);
    BeginCopy(BackgroundCopy::Kind::kIn, block, slot);
  }
  for (auto block = others.rbegin(); block != others.rend(); ++block) Release(*block);
}

void KvCacheManager::EmitCopies(StepPlan& plan) {
  for (const std::uint64_t id : std::exchange(to_send_, {})) {
    const CopyInFlight& copy = copies_.at(id);
    for (const BackgroundCopy::Move& move : copy.moves) {
      digest_.AddCopy(plan.step, id, copy.tier, move.block, move.slot);
    }
    plan.ops.push_back(
        BackgroundCopy{.id = id, .kind = copy.kind, .tier = copy.tier, .moves = copy.moves});
  }
  // A copy that starts with the next plan sees what this plan writes.
  while (!written_now_.empty()) {
    const BlockId block = written_now_.front();
    written_now_.Remove(block);
    to_store_.Add(block);
  }
}

bool KvCacheManager::CopyDone(std::uint64_t id) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || std::find(to_send_.begin(), to_send_.end(), id) != to_send_.end()) {
    return false;
  }
  const CopyInFlight copy = std::move(found->second);
  copies_.erase(found);
  const bool out = copy.kind == BackgroundCopy::Kind::kOut;
  copies_out_ -= out ? static_cast<std::uint32_t>(copy.moves.size()) : 0;
  for (std::size_t i = 0; i < copy.moves.size(); ++i) {
    const TierSlot slot{.tier = copy.tier, .slot = copy.moves[i].slot};
    const PrefixNode node = copy.nodes[i];
    const std::size_t group = copy.groups[i];
    copies_ns_ -= CopyNs(copy.kind, copy.tier);
    if (!out) index_->SetLoading(node, false, group);
    pool_.SetCopying(copy.moves[i].block, false);
    pool_.ReleaseBefore(copy.moves[i].block, index_->block(index_->parent(node), group));
    index_->Log(node);
    tiers_.Unpin(slot);
    tiers_.Use(slot);
  }
  return true;
}

std::vector<BlockId> KvCacheManager::CopiedBlocks() const {
  std::vector<BlockId> blocks;
  for (const auto& [id, copy] : copies_) {
    for (const BackgroundCopy::Move& move : copy.moves) blocks.push_back(move.block);
  }
  return blocks;
}

std::uint32_t KvCacheManager::HeldByCopies() const {
  std::uint32_t held = 0;
  for (const auto& [id, copy] : copies_) {
    for (const BackgroundCopy::Move& move : copy.moves) held += Unnamed(move.block);
  }
  return held;
}

}  // namespace flotilla::scheduler
