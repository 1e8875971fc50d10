#include "scheduler/core/block_pool.h"

#include <algorithm>

#include "scheduler/core/check.h"

namespace flotilla::scheduler {

BlockPool::BlockPool(std::uint32_t block_count)
    : total_(std::max(block_count, 1u) - 1), pages_(std::size_t{total_} + 1) {
  free_.reserve(total_);
  for (std::uint32_t block = total_; block > 0; --block) free_.push_back(block);
}

void BlockPool::Unlink(std::uint32_t block) {
  const Page& page = pages_[block];
  pages_[page.previous].next = page.next;
  pages_[page.next].previous = page.previous;
  --cached_;
}

BlockId BlockPool::Take() {
  FLOTILLA_CORE_CHECK(available() > 0);
  std::uint32_t block = pages_[0].next;
  if (free_.empty()) {
    Unlink(block);
  } else {
    block = free_.back();
    free_.pop_back();
  }
  pages_[block] = Page{.references = 1};
  return BlockId(block);
}

void BlockPool::Share(BlockId block) {
  Page& page = pages_[block.value()];
  FLOTILLA_CORE_CHECK(page.references > 0 || page.kept);
  if (page.references++ == 0) Unlink(block.value());
}

bool BlockPool::Unreference(BlockId block) {
  Page& page = pages_[block.value()];
  FLOTILLA_CORE_CHECK(block != kNullBlock && page.references > 0);
  if (--page.references > 0) return false;
  if (!page.kept) free_.push_back(block.value());
  return page.kept;
}

void BlockPool::Link(std::uint32_t block, std::uint32_t previous, std::uint32_t next) {
  pages_[block].previous = previous;
  pages_[block].next = next;
  pages_[previous].next = block;
  pages_[next].previous = block;
  ++cached_;
}

void BlockPool::Release(BlockId block) {
  if (Unreference(block)) Link(block.value(), pages_[0].previous, 0);
}

void BlockPool::ReleaseAsOldest(BlockId block) {
  if (Unreference(block)) Link(block.value(), 0, pages_[0].next);
}

std::vector<BlockId> BlockPool::Oldest(std::size_t count) const {
  std::vector<BlockId> oldest;
  for (std::uint32_t at = pages_[0].next; at != 0 && oldest.size() < count; at = pages_[at].next) {
    oldest.emplace_back(at);
  }
  return oldest;
}

}  // namespace flotilla::scheduler
