// BlockPool: who uses which page of the KV pool, counted exactly.
//
// Block 0 is the null block and never handed out. Every other block is free,
// cached or used: free + cached + used = total. A cached block (reference count
// zero, contents still wanted) exists only with a prefix cache; until there is
// one the count is always 0. Owned by KvLedger; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/types/ids.h"

namespace flotilla {

class BlockPool {
 public:
  // A pool of pages 0 .. block_count - 1; page 0 is the null block.
  explicit BlockPool(std::uint32_t block_count);

  std::uint32_t total() const { return total_; }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t cached() const { return 0; }
  std::uint32_t used() const { return total() - free() - cached(); }

  // Takes a free block with one reference. There is one: see free().
  BlockId Take();
  // One more table names `block`, which is used.
  void Share(BlockId block);
  // One table less names it; the last one makes it free.
  void Release(BlockId block);
  // Tables that name `block`; 0 when free.
  std::uint32_t references(BlockId block) const { return references_[block.value()]; }

 private:
  std::uint32_t total_;
  std::vector<std::uint32_t> free_;        // a stack: the warmest block first
  std::vector<std::uint32_t> references_;  // [total + 1]
};

}  // namespace flotilla
