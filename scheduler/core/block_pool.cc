#include "scheduler/core/block_pool.h"

#include <algorithm>

#include "scheduler/core/check.h"

namespace flotilla {

BlockPool::BlockPool(std::uint32_t block_count)
    : total_(std::max(block_count, 1u) - 1), references_(std::size_t{total_} + 1, 0) {
  free_.reserve(total_);
  for (std::uint32_t block = total_; block > 0; --block) free_.push_back(block);
}

BlockId BlockPool::Take() {
  FLOTILLA_CORE_CHECK(!free_.empty());
  const std::uint32_t block = free_.back();
  free_.pop_back();
  references_[block] = 1;
  return BlockId(block);
}

void BlockPool::Share(BlockId block) {
  FLOTILLA_CORE_CHECK(references_[block.value()] > 0);
  ++references_[block.value()];
}

void BlockPool::Release(BlockId block) {
  FLOTILLA_CORE_CHECK(block != kNullBlock && references_[block.value()] > 0);
  if (--references_[block.value()] == 0) free_.push_back(block.value());
}

}  // namespace flotilla
