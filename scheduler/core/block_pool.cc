#include "scheduler/core/block_pool.h"

#include <algorithm>

#include "scheduler/core/check.h"

namespace flotilla::scheduler {

BlockPool::BlockPool(std::uint32_t block_count)
    : total_(std::max(block_count, 1u) - 1), states_(std::size_t{total_} + 1) {
  free_.reserve(total_);
  for (std::uint32_t block = total_; block > 0; --block) free_.push_back(block);
}

void BlockPool::Unlink(std::uint32_t block) {
  const State& state = states_[block];
  states_[state.previous].next = state.next;
  states_[state.next].previous = state.previous;
  --cached_;
}

BlockId BlockPool::Take() {
  FLOTILLA_CORE_CHECK(available() > 0);
  std::uint32_t block = states_[0].next;
  if (free_.empty()) {
    Unlink(block);
  } else {
    block = free_.back();
    free_.pop_back();
  }
  states_[block] = State{.references = 1};
  return BlockId(block);
}

void BlockPool::Share(BlockId block) {
  State& state = states_[block.value()];
  FLOTILLA_CORE_CHECK(state.references > 0 || state.kept);
  if (state.references++ == 0) Unlink(block.value());
}

bool BlockPool::Unreference(BlockId block) {
  State& state = states_[block.value()];
  FLOTILLA_CORE_CHECK(block != kNullBlock && state.references > 0);
  if (--state.references > 0) return false;
  if (!state.kept) free_.push_back(block.value());
  return state.kept;
}

void BlockPool::Link(std::uint32_t block, std::uint32_t previous, std::uint32_t next) {
  states_[block].previous = previous;
  states_[block].next = next;
  states_[previous].next = block;
  states_[next].previous = block;
  ++cached_;
}

void BlockPool::Release(BlockId block) {
  if (Unreference(block)) Link(block.value(), states_[0].previous, 0);
}

void BlockPool::ReleaseBefore(BlockId block, BlockId later) {
  if (!Unreference(block)) return;
  const std::uint32_t next = cached(later) ? later.value() : 0;
  Link(block.value(), states_[next].previous, next);
}

void BlockPool::Drop(BlockId block) {
  FLOTILLA_CORE_CHECK(cached(block));
  Unlink(block.value());
  states_[block.value()] = State{};
  free_.push_back(block.value());
}

}  // namespace flotilla::scheduler
