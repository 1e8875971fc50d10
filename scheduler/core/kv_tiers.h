// KvTiers: tracks which slots of the tiers below the KV pool are used, and by which block.
//
// A slot keeps a copy of a block that the prefix index knows. When a tier is full, the
// least recently used slot is reused. A slot is pinned while a copy reads or writes it.
// KvCacheManager owns this object for one epoch; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/executor.h"
#include "scheduler/core/block_pool.h"
#include "scheduler/core/prefix_index.h"

namespace flotilla::scheduler {

class KvTiers {
 public:
  // `index` outlives this object; null: there are no tiers.
  KvTiers(const std::vector<KvTier>& tiers, PrefixIndex* index);

  bool any() const { return !stores_.empty(); }
  // Whether it is cheaper to write a block to this tier and read it back (WorthStoring),
  // or only to read it back (WorthLoading), than to compute the block again.
  bool WorthStoring(std::uint32_t tier, std::int64_t recompute_ns) const;
  bool WorthLoading(std::uint32_t tier, std::int64_t recompute_ns) const;

  // The least time that a tier takes to write a block and read it back; 0: no tiers.
  std::int64_t SwapNs() const;

  // Takes and pins a slot for the node's block, in the fastest tier that is worth it and
  // has a free slot. If there is no free slot, the least recently used slot of the fastest
  // such tier is taken and its old content is forgotten. None: no tier is worth it, or all
  // slots are pinned.
  std::optional<TierSlot> Take(PrefixNode node, std::int64_t recompute_ns);
  // A pinned slot is not reused until Unpin was called as often as Pin. Unpin makes the
  // slot the most recently used.
  void Pin(TierSlot slot);
  void Unpin(TierSlot slot);

  // The number of slots that hold a copy.
  std::uint64_t used() const;
  // INTERNAL: slots and nodes disagree. O(slots): for tests.
  absl::Status Check() const;

 private:
  struct Store {
    KvTier tier;
    BlockPool slots;                  // block id = slot + 1
    std::vector<PrefixNode> node_of;  // [slots + 1] by id
  };

  static BlockId IdOf(TierSlot slot) { return BlockId(slot.slot + 1); }

  PrefixIndex* index_;
  std::vector<Store> stores_;
};

}  // namespace flotilla::scheduler
