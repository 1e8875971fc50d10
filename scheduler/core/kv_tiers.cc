#include "scheduler/core/kv_tiers.h"

#include <algorithm>
#include <utility>

namespace flotilla::scheduler {

KvTiers::Store::Store(const KvTier& tier)
    : tier(tier), slots(tier.block_count), droppable(LessRecent{&slots}) {
  free.reserve(tier.block_count);
  for (std::uint32_t slot = tier.block_count; slot-- > 0;) free.push_back(slot);
}

KvTiers::KvTiers(const std::vector<KvTier>& tiers, absl::Span<const KvGroup> groups,
                 PrefixIndex* index)
    : groups_(groups), index_(index) {
  if (index == nullptr) return;
  const auto full = std::find_if(groups.begin(), groups.end(), [](const KvGroup& group) {
    return group.kind == KvGroup::Kind::kFull;
  });
  if (full != groups.end()) first_full_ = static_cast<std::size_t>(full - groups.begin());
  for (const KvTier& tier : tiers) {
    if (stores_.size() < 32) stores_.emplace_back(tier);
  }
}

bool KvTiers::Worth(std::uint32_t tier, Cost cost, std::int64_t recompute_ns) const {
  const KvTier& t = stores_[tier].tier;
  const std::int64_t write_ns = cost == Cost::kWriteAndReadBack ? t.out_ns_per_block : 0;
  return write_ns + t.in_ns_per_block < recompute_ns;
}

std::uint32_t KvTiers::WorthLoading(std::int64_t recompute_ns) const {
  std::uint32_t worth = 0;
  for (std::uint32_t t = 0; t < stores_.size(); ++t) {
    worth |= std::uint32_t{Worth(t, Cost::kReadBack, recompute_ns)} << t;
  }
  return worth;
}

std::int64_t KvTiers::SwapNs() const {
  std::int64_t least = 0;
  for (const Store& store : stores_) {
    const std::int64_t ns = store.tier.out_ns_per_block + store.tier.in_ns_per_block;
    if (least == 0 || ns < least) least = ns;
  }
  return least;
}

KvTiers::Block KvTiers::NeededBy(PrefixNode node, std::size_t group) const {
  if (groups_[group].kind == KvGroup::Kind::kWindow) {
    return first_full_.has_value() ? Block{.node = node, .group = *first_full_} : Block{};
  }
  return index_->depth(node) > 1 ? Block{.node = index_->parent(node), .group = group} : Block{};
}

std::uint32_t& KvTiers::Needing(PrefixNode node, std::size_t group) {
  const std::size_t at = node * groups_.size() + group;
  if (at >= needing_.size()) needing_.resize(at + 1, 0);
  return needing_[at];
}

std::optional<TierSlot> KvTiers::Take(PrefixNode node, std::size_t group, Cost cost,
                                      std::int64_t recompute_ns) {
  const Block needed = NeededBy(node, group);
  TierSlot before;
  if (needed.node != kNoPrefix) {
    before = index_->slot(needed.node, needed.group);
    if (!before.kept()) return std::nullopt;
    Pin(before);  // so that it is not dropped for a block that needs it
  }
  std::optional<TierSlot> taken;
  for (const bool drop : {false, true}) {
    for (std::uint32_t t = 0; t < stores_.size() && !taken.has_value(); ++t) {
      Store& store = stores_[t];
      if (!Worth(t, cost, recompute_ns)) continue;
      if (drop && store.free.empty() && !store.droppable.empty()) {
        Drop({.tier = t, .slot = store.droppable.top()});
      }
      if (store.free.empty()) continue;
      taken = {.tier = t, .slot = store.free.back()};
      store.free.pop_back();
      At(*taken) = {
          .node = node, .group = static_cast<std::uint8_t>(group), .pins = 1, .last_use = ++uses_};
      Needing(node, group) = 0;
      index_->SetSlot(node, *taken, group);
    }
  }
  if (!before.kept()) return taken;
  Needing(needed.node, needed.group) += taken.has_value();
  Unpin(before);
  return taken;
}

void KvTiers::Pin(TierSlot slot) {
  ++At(slot).pins;
  Sort(slot);
}

void KvTiers::Unpin(TierSlot slot) {
  --At(slot).pins;
  Sort(slot);
}

void KvTiers::Use(TierSlot slot) {
  stores_[slot.tier].droppable.Remove(slot.slot);
  At(slot).last_use = ++uses_;
  Sort(slot);
}

void KvTiers::Sort(TierSlot slot) {
  const Slot& is = At(slot);
  IndexedHeap<LessRecent>& droppable = stores_[slot.tier].droppable;
  if (is.pins > 0 || Needing(is.node, is.group) > 0) {
    droppable.Remove(slot.slot);
  } else if (!droppable.Contains(slot.slot)) {
    droppable.Push(slot.slot);
  }
}

void KvTiers::Drop(TierSlot slot) {
  Store& store = stores_[slot.tier];
  store.droppable.Remove(slot.slot);
  const Slot dropped = std::exchange(At(slot), Slot{});
  store.free.push_back(slot.slot);
  if (const Block needed = NeededBy(dropped.node, dropped.group); needed.node != kNoPrefix) {
    --Needing(needed.node, needed.group);
    Sort(index_->slot(needed.node, needed.group));
  }
  index_->SetSlot(dropped.node, TierSlot{}, dropped.group);
}

std::uint64_t KvTiers::used() const {
  std::uint64_t used = 0;
  for (const Store& store : stores_) used += store.slots.size() - store.free.size();
  return used;
}

absl::Status KvTiers::Check() const {
  std::vector<std::uint32_t> needing(needing_.size(), 0);
  for (const Store& store : stores_) {
    for (const Slot& slot : store.slots) {
      if (slot.node == kNoPrefix) continue;
      const Block needed = NeededBy(slot.node, slot.group);
      if (needed.node == kNoPrefix) continue;
      if (!index_->slot(needed.node, needed.group).kept()) {
        return absl::InternalError("a slot keeps a block that is of no use");
      }
      ++needing[needed.node * groups_.size() + needed.group];
    }
  }
  if (needing != needing_) return absl::InternalError("a wrong number of blocks that need one");
  for (std::uint32_t t = 0; t < stores_.size(); ++t) {
    const Store& store = stores_[t];
    const auto kept = std::count_if(store.slots.begin(), store.slots.end(),
                                    [](const Slot& slot) { return slot.node != kNoPrefix; });
    if (static_cast<std::size_t>(kept) + store.free.size() != store.slots.size()) {
      return absl::InternalError("a slot without a node");
    }
    for (std::uint32_t at = 0; at < store.slots.size(); ++at) {
      const Slot& slot = store.slots[at];
      if (slot.node == kNoPrefix) continue;
      if (index_->slot(slot.node, slot.group) != TierSlot{.tier = t, .slot = at}) {
        return absl::InternalError("a node of another slot");
      }
      const std::size_t block = slot.node * groups_.size() + slot.group;
      const bool can_be_dropped = slot.pins == 0 && needing_[block] == 0;
      if (store.droppable.Contains(at) != can_be_dropped) {
        return absl::InternalError("a slot that can be dropped is not listed, or the reverse");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::scheduler
