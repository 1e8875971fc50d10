// BlockPool: counts exactly how many tables use each block of the KV pool.
//
// Block 0 is the null block and is never handed out. Every other block is free, cached or
// used: free + cached + used = total. At least one table or copy names a used block. None
// names a cached block, but its contents are kept until its block is needed; the least
// recently used one goes first. KvCacheManager owns the pool; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/types/ids.h"

namespace flotilla::scheduler {

class BlockPool {
 public:
  // Makes a pool of blocks 0 .. block_count - 1. Block 0 is the null block.
  explicit BlockPool(std::uint32_t block_count);

  std::uint32_t total() const { return total_; }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t cached() const { return cached_; }
  std::uint32_t used() const { return total() - free() - cached(); }
  // The number of blocks that Take can give.
  std::uint32_t available() const { return free() + cached(); }

  // Takes a free block, or if there is none the cached block that was released first. The
  // block has one reference. available() must not be 0.
  BlockId Take();
  // Adds a reference to `block`, which is used or cached.
  void Share(BlockId block);
  // Removes a reference. Without references the block is cached if it is kept, else free.
  void Release(BlockId block);
  // As Release, but if the block becomes cached and `later` is cached, the block is evicted
  // just before `later`.
  void ReleaseBefore(BlockId block, BlockId later);
  // Frees a cached block at once. Its contents are lost.
  void Drop(BlockId block);
  // Marks `block`, which is used: its contents are kept until Take evicts it.
  void Keep(BlockId block) { states_[block.value()].kept = true; }
  bool kept(BlockId block) const { return states_[block.value()].kept; }
  // Sets whether one of the references to `block` is that of a copy to or from a tier.
  void SetCopying(BlockId block, bool copying) { states_[block.value()].copying = copying; }
  // The number of tables and copies that name `block`; 0 when it is free or cached.
  std::uint32_t references(BlockId block) const { return states_[block.value()].references; }
  // The number of tables that do.
  std::uint32_t tables(BlockId block) const {
    return references(block) - std::uint32_t{states_[block.value()].copying};
  }
  bool cached(BlockId block) const { return kept(block) && references(block) == 0; }

 private:
  struct State {
    std::uint32_t references = 0;
    bool kept = false;
    bool copying = false;
    // The neighbours in the list of cached blocks. Block 0 is the head of the list.
    std::uint32_t previous = 0, next = 0;
  };

  void Unlink(std::uint32_t block);
  // Puts a cached block between two neighbours of the list.
  void Link(std::uint32_t block, std::uint32_t previous, std::uint32_t next);
  // Removes a reference. True when no table names the block any more and it is kept.
  bool Unreference(BlockId block);

  std::uint32_t total_;
  std::uint32_t cached_ = 0;
  std::vector<std::uint32_t> free_;  // a stack: the block released last is taken first
  std::vector<State> states_;        // [total + 1]
};

}  // namespace flotilla::scheduler
