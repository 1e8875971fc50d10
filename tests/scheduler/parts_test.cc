// The parts of the scheduler core that stand alone: pool and heap.

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "scheduler/core/block_pool.h"
#include "scheduler/core/indexed_heap.h"
#include "scheduler/core/kv_cache_manager.h"
#include "scheduler/core/prefix_index.h"

namespace flotilla::scheduler {
namespace {

TEST(BlockPool, HandsOutEachBlockOnceAndNeverTheNullBlock) {
  BlockPool pool(5);
  EXPECT_EQ(pool.total(), 4u);
  std::set<BlockId> taken;
  while (pool.free() > 0) taken.insert(pool.Take());
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_FALSE(taken.contains(kNullBlock));
  EXPECT_EQ(pool.used(), 4u);
}

TEST(BlockPool, SharedBlockIsFreeAfterItsLastRelease) {
  BlockPool pool(2);
  const BlockId block = pool.Take();
  pool.Share(block);
  pool.Release(block);
  EXPECT_EQ(pool.references(block), 1u);
  EXPECT_EQ(pool.free(), 0u);
  pool.Release(block);
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.free() + pool.cached() + pool.used(), pool.total());
}

TEST(BlockPool, KeptBlocksAreCachedAndTheOldestGoesFirst) {
  BlockPool pool(4);
  const BlockId a = pool.Take(), b = pool.Take(), c = pool.Take();
  for (const BlockId block : {a, b}) pool.Keep(block);
  for (const BlockId block : {b, a, c}) pool.Release(block);
  EXPECT_EQ(pool.cached(), 2u);
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.used(), 0u);
  pool.Share(b);  // wanted again: now the youngest
  pool.Release(b);
  EXPECT_EQ(pool.Take(), c);
  EXPECT_EQ(pool.Take(), a);
  EXPECT_FALSE(pool.kept(a));
  EXPECT_EQ(pool.Take(), b);
  EXPECT_EQ(pool.available(), 0u);
}

TEST(PrefixIndex, FindsByContentAfterThePrefixInTheScope) {
  PrefixIndex index(8);
  const std::vector<TokenId> x = {1, 2}, y = {3, 4};
  EXPECT_EQ(index.FindRoot("a"), kNoPrefix);
  const PrefixNode root_a = index.MakeRoot("a"), root_b = index.MakeRoot("b");
  EXPECT_EQ(index.MakeRoot("a"), root_a);
  const PrefixNode ax = index.Insert(root_a, x, BlockId(1));
  const PrefixNode axy = index.Insert(ax, y, BlockId(2));
  const PrefixNode bx = index.Insert(root_b, x, BlockId(3));
  EXPECT_EQ(index.Find(root_a, x), ax);
  EXPECT_EQ(index.Find(root_b, x), bx);
  EXPECT_EQ(index.Find(ax, y), axy);
  EXPECT_EQ(index.Find(root_a, y), kNoPrefix);
  EXPECT_EQ(index.Find(ax, x), kNoPrefix);
  EXPECT_EQ(index.children(ax), 1u);
  index.SetBlock(axy, kNullBlock);
  index.SetBlock(ax, kNullBlock);
  EXPECT_EQ(index.FindRoot("a"), kNoPrefix);  // with its last block
  EXPECT_EQ(index.FindRoot("b"), root_b);
  EXPECT_EQ(index.size(), 1u);
}

TEST(BlockPoolDeathTest, ReleasingAFreeBlockIsACrash) {
  BlockPool pool(2);
  const BlockId block = pool.Take();
  pool.Release(block);
  EXPECT_DEATH(pool.Release(block), "check failed");
  EXPECT_DEATH(pool.Release(kNullBlock), "check failed");
}

TEST(IndexedHeap, AgreesWithASetUnderRandomUse) {
  std::mt19937 random(5);
  IndexedHeap<std::less<>> heap{std::less<>()};
  std::set<std::uint32_t> reference;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint32_t index = random() % 64;
    if (reference.contains(index)) {
      EXPECT_TRUE(heap.Remove(index));
      reference.erase(index);
    } else {
      EXPECT_FALSE(heap.Remove(index));
      heap.Push(index);
      reference.insert(index);
    }
    ASSERT_EQ(heap.size(), reference.size());
    if (reference.empty()) continue;
    ASSERT_EQ(heap.top(), *reference.begin());
  }
}

TEST(KvCacheManager, LongestWithinIsTheMostThatTheBlocksHold) {
  ExecutorDescription description;
  description.groups = {
      {.tokens_per_block = 16}, {.kind = KvGroup::Kind::kState}, {.tokens_per_block = 4}};
  description.block_count = 100;
  const KvCacheManager manager(description, /*prefix_cache=*/true);
  EXPECT_EQ(manager.BlocksFor(0), 0u);
  EXPECT_EQ(manager.BlocksFor(1), 3u);
  EXPECT_EQ(manager.BlocksFor(17), 2u + 1u + 5u);
  const Sequence sequence;
  for (std::uint64_t blocks = 0; blocks < 40; ++blocks) {
    const std::uint32_t longest = manager.LongestWithin(sequence, 90, blocks);
    EXPECT_LE(manager.BlocksNeeded(sequence, longest), blocks);
    EXPECT_TRUE(longest == 90 || manager.BlocksNeeded(sequence, longest + 1) > blocks) << blocks;
  }
}

}  // namespace
}  // namespace flotilla::scheduler
