#include "scheduler/core/kv_tiers.h"

#include <utility>

namespace flotilla::scheduler {

KvTiers::KvTiers(const std::vector<KvTier>& tiers, PrefixIndex* index) : index_(index) {
  if (index == nullptr) return;
  for (const KvTier& tier : tiers) {
    stores_.push_back({.tier = tier,
                       .slots = BlockPool(tier.block_count + 1),
                       .node_of = std::vector<PrefixNode>(tier.block_count + 1, kNoPrefix)});
  }
}

bool KvTiers::WorthStoring(std::uint32_t tier, std::int64_t recompute_ns) const {
  const KvTier& t = stores_[tier].tier;
  return t.out_ns_per_block + t.in_ns_per_block < recompute_ns;
}

bool KvTiers::WorthLoading(std::uint32_t tier, std::int64_t recompute_ns) const {
  return stores_[tier].tier.in_ns_per_block < recompute_ns;
}

std::int64_t KvTiers::SwapNs() const {
  std::int64_t least = 0;
  for (const Store& store : stores_) {
    const std::int64_t ns = store.tier.out_ns_per_block + store.tier.in_ns_per_block;
    if (least == 0 || ns < least) least = ns;
  }
  return least;
}

std::optional<TierSlot> KvTiers::Take(PrefixNode node, std::int64_t recompute_ns) {
  for (const bool free_only : {true, false}) {
    for (std::uint32_t t = 0; t < stores_.size(); ++t) {
      Store& store = stores_[t];
      const std::uint32_t room = free_only ? store.slots.free() : store.slots.available();
      if (room == 0 || !WorthStoring(t, recompute_ns)) continue;
      const BlockId id = store.slots.Take();
      if (const PrefixNode old = std::exchange(store.node_of[id.value()], node); old != kNoPrefix) {
        index_->SetSlot(old, TierSlot{});
      }
      store.slots.Keep(id);
      return TierSlot{.tier = t, .slot = id.value() - 1};
    }
  }
  return std::nullopt;
}

void KvTiers::Pin(TierSlot slot) { stores_[slot.tier].slots.Share(IdOf(slot)); }
void KvTiers::Unpin(TierSlot slot) { stores_[slot.tier].slots.Release(IdOf(slot)); }

std::uint64_t KvTiers::used() const {
  std::uint64_t used = 0;
  for (const Store& store : stores_) used += store.slots.total() - store.slots.free();
  return used;
}

absl::Status KvTiers::Check() const {
  for (std::uint32_t t = 0; t < stores_.size(); ++t) {
    const Store& store = stores_[t];
    for (std::uint32_t id = 1; id < store.node_of.size(); ++id) {
      const PrefixNode node = store.node_of[id];
      if (store.slots.kept(BlockId(id)) != (node != kNoPrefix)) {
        return absl::InternalError("a slot without a node");
      }
      const bool copying = store.slots.references(BlockId(id)) > 0;
      const TierSlot slot{.tier = t, .slot = id - 1};
      if (node != kNoPrefix && !copying && index_->slot(node) != slot) {
        return absl::InternalError("a node of another slot");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::scheduler
