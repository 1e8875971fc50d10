// KvTiers: who uses which slot of the tiers below the KV pool.
//
// A slot keeps a copy of a block that the prefix index knows; the least recently
// used one gives way when a tier is full. Slots in a copy are pinned. Owned by
// KvCacheManager, for one epoch; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/executor.h"
#include "scheduler/core/block_pool.h"
#include "scheduler/core/prefix_index.h"

namespace flotilla {

class KvTiers {
 public:
  // `index` outlives it; null: no tiers.
  KvTiers(const std::vector<KvTier>& tiers, PrefixIndex* index);

  bool any() const { return !stores_.empty(); }
  // Whether it is cheaper to write a block to this tier and read it back than to
  // compute it again.
  bool WorthStoring(std::uint32_t tier, std::int64_t recompute_ns) const;
  bool WorthLoading(std::uint32_t tier, std::int64_t recompute_ns) const;

  // The least that one of them takes to write a block and to read it back; 0: none.
  std::int64_t SwapNs() const;

  // A slot for the node's block, pinned, in the fastest tier with room that is
  // worth it; its last content is forgotten. None: no tier is, or all are pinned.
  std::optional<TierSlot> Take(PrefixNode node, std::int64_t recompute_ns);
  // Nobody gives the slot away until as many Unpin. Unpin makes it the most
  // recently used.
  void Pin(TierSlot slot);
  void Unpin(TierSlot slot);

  // Slots that keep something.
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

}  // namespace flotilla
