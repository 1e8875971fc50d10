// BlockPool: who uses which page of the KV pool, counted exactly.
//
// Block 0 is the null block and never handed out. Every other block is free,
// cached or used: free + cached + used = total. A used block is named by at
// least one table; a cached one by none, but its contents are kept until its
// page is needed: least recently used first. Owned by KvCacheManager; one thread.
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
  std::uint32_t cached() const { return cached_; }
  std::uint32_t used() const { return total() - free() - cached(); }
  // Blocks that Take can give.
  std::uint32_t available() const { return free() + cached(); }

  // Takes a free block with one reference, or if there is none the cached one
  // that was released first. There is one: see available().
  BlockId Take();
  // One more table names `block`, which is used or cached.
  void Share(BlockId block);
  // One table less names it. The last one makes it free, or cached if it is kept.
  void Release(BlockId block);
  // The same, but if it is cached then it is the next to be given away.
  void ReleaseAsOldest(BlockId block);
  // The cached blocks, the next to be given away first, `count` at most.
  std::vector<BlockId> Oldest(std::size_t count) const;
  // `block` is used, and its contents are worth keeping until Take gives it away.
  void Keep(BlockId block) { pages_[block.value()].kept = true; }
  bool kept(BlockId block) const { return pages_[block.value()].kept; }
  // Tables that name `block`; 0 when free or cached.
  std::uint32_t references(BlockId block) const { return pages_[block.value()].references; }

 private:
  struct Page {
    std::uint32_t references = 0;
    bool kept = false;
    // Neighbours in the list of cached blocks; page 0 is its head.
    std::uint32_t previous = 0, next = 0;
  };

  void Unlink(std::uint32_t block);
  // Cached, between two neighbours of the list.
  void Link(std::uint32_t block, std::uint32_t previous, std::uint32_t next);
  // True when no table names it any more but its contents are kept.
  bool Unreference(BlockId block);

  std::uint32_t total_;
  std::uint32_t cached_ = 0;
  std::vector<std::uint32_t> free_;  // a stack: the warmest block first
  std::vector<Page> pages_;          // [total + 1]
};

}  // namespace flotilla
