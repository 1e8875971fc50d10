// BlockList: blocks of the pool in order, of which any can be removed in O(1).
//
// KvCacheManager lists there the blocks that are to be copied to a tier; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/types/ids.h"

namespace flotilla::scheduler {

class BlockList {
 public:
  // The list takes blocks 1 .. total.
  explicit BlockList(std::uint32_t total) : links_(std::size_t{total} + 1) {}

  bool empty() const { return links_[0].next == 0; }
  // The block that was added first. The list must not be empty.
  BlockId front() const { return BlockId(links_[0].next); }
  // Adds the block at the end. Has no effect when it is in the list.
  void Add(BlockId block) {
    Link& link = links_[block.value()];
    if (link.inside) return;
    link = {.previous = links_[0].previous, .next = 0, .inside = true};
    links_[link.previous].next = links_[0].previous = block.value();
  }
  // Has no effect when the block is not in the list.
  void Remove(BlockId block) {
    Link& link = links_[block.value()];
    if (!link.inside) return;
    links_[link.previous].next = link.next;
    links_[link.next].previous = link.previous;
    link = {};
  }

 private:
  struct Link {
    std::uint32_t previous = 0, next = 0;
    bool inside = false;
  };
  std::vector<Link> links_;  // [total + 1]; block 0 is the head of the list
};

}  // namespace flotilla::scheduler
