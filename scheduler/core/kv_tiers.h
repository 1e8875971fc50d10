// KvTiers: tracks which slots of the tiers below the KV pool are used, and by which block.
//
// A slot keeps a copy of a block that the prefix index knows: of one KV group of a node. A block of
// a group that keeps every position is kept only while the block before it is kept, and a block of
// a window group only while the first group that keeps every position has its block of the same
// node, because it is of no use without that one. So when a tier is full, it drops a block that no
// other needs: of these, the least recently used. A slot is pinned while a copy reads or writes
// it. KvCacheManager owns this object for one epoch; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/types/executor.h"
#include "scheduler/core/indexed_heap.h"
#include "scheduler/core/prefix_index.h"

namespace flotilla::scheduler {

class KvTiers {
 public:
  // `groups` are those of the index. All outlive this object. A null index: there are no tiers.
  KvTiers(const std::vector<KvTier>& tiers, absl::Span<const KvGroup> groups, PrefixIndex* index);

  bool any() const { return !stores_.empty(); }
  const KvTier& tier(std::uint32_t tier) const { return stores_[tier].tier; }
  // What a copy to a tier costs that must be cheaper than to compute the block again: to read it
  // back, if it is written while nobody waits for its block; else to write it and read it back.
  enum class Cost : std::uint8_t { kReadBack, kWriteAndReadBack };
  bool Worth(std::uint32_t tier, Cost cost, std::int64_t recompute_ns) const;
  // The tiers from which it is cheaper to read a block back than to compute it again: bit t is set
  // for tier t. Tiers after the 32nd are not used.
  std::uint32_t WorthLoading(std::int64_t recompute_ns) const;

  // The least time that a tier takes to write a block and read it back; 0: no tiers.
  std::int64_t SwapNs() const;

  // Takes a slot for the node's block of `group`, pins it and gives it to the node, in the fastest
  // tier that is worth it and has a free slot. If there is no free slot, the fastest such tier
  // drops a block. None: no tier is worth it, what the block needs is in no tier, or nothing can be
  // dropped.
  std::optional<TierSlot> Take(PrefixNode node, std::size_t group, Cost cost,
                               std::int64_t recompute_ns);
  // The block of a pinned slot is not dropped until Unpin was called as often as Pin.
  void Pin(TierSlot slot);
  void Unpin(TierSlot slot);
  // Makes the slot the most recently used.
  void Use(TierSlot slot);

  // The number of slots that hold a copy.
  std::uint64_t used() const;
  // INTERNAL: slots and nodes disagree. O(slots): for tests.
  absl::Status Check() const;

 private:
  struct Slot {
    PrefixNode node = kNoPrefix;
    std::uint8_t group = 0;
    std::uint32_t pins = 0;
    std::uint64_t last_use = 0;
  };
  struct LessRecent {
    const std::vector<Slot>* slots;
    bool operator()(std::uint32_t a, std::uint32_t b) const {
      return (*slots)[a].last_use < (*slots)[b].last_use;
    }
  };
  struct Store {
    explicit Store(const KvTier& tier);
    Store(const Store&) = delete;

    const KvTier tier;
    std::vector<Slot> slots;
    std::vector<std::uint32_t> free;    // a stack
    IndexedHeap<LessRecent> droppable;  // not pinned, and no other block needs them
  };

  Slot& At(TierSlot slot) { return stores_[slot.tier].slots[slot.slot]; }
  // Puts the slot among those that can be dropped, or takes it out, as its state says.
  void Sort(TierSlot slot);
  // The block without which a block of `group` is of no use. Its node is kNoPrefix: there is none.
  struct Block {
    PrefixNode node = kNoPrefix;
    std::size_t group = 0;
  };
  Block NeededBy(PrefixNode node, std::size_t group) const;
  // The number of blocks in tiers that need it.
  std::uint32_t& Needing(PrefixNode node, std::size_t group);
  void Drop(TierSlot slot);

  const absl::Span<const KvGroup> groups_;
  std::optional<std::size_t> first_full_;  // the first group that keeps every position
  PrefixIndex* index_;
  std::vector<std::uint32_t> needing_;  // [nodes, groups]
  std::deque<Store> stores_;
  std::uint64_t uses_ = 0;
};

}  // namespace flotilla::scheduler
