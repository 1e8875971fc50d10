#include "worker/compute/block_count.h"

#include "gtest/gtest.h"

namespace flotilla::worker {
namespace {

constexpr std::int64_t kBlock = 1 << 20;

TEST(BlockCountTest, ItIsTheShareOfTheBytes) {
  EXPECT_EQ(BlocksWithin({.bytes = 1000 * kBlock, .share_percent = 50, .bytes_per_block = kBlock}),
            500);
  EXPECT_EQ(BlocksWithin({.bytes = 1000 * kBlock - 1, .bytes_per_block = kBlock}), 999);
}

TEST(BlockCountTest, OneSequenceMayHaveMoreThanTheShareButNotAll) {
  BlockBudget budget{.bytes = 1000 * kBlock, .share_percent = 50, .bytes_per_block = kBlock};
  budget.one_sequence = 700;
  EXPECT_EQ(BlocksWithin(budget), 701);  // with the null block
  budget.one_sequence = 20'000;
  EXPECT_EQ(BlocksWithin(budget), 900);
  budget.share_percent = 95;
  EXPECT_EQ(BlocksWithin(budget), 950);
}

TEST(BlockCountTest, MoreThanAllSequencesCanUseIsNotTaken) {
  const BlockBudget budget{.bytes = 1000 * kBlock,
                           .share_percent = 50,
                           .bytes_per_block = kBlock,
                           .one_sequence = 10,
                           .most = 40};
  EXPECT_EQ(BlocksWithin(budget), 41);
}

TEST(BlockCountTest, ExtremesStayInBounds) {
  EXPECT_EQ(BlocksWithin({.bytes = -5, .bytes_per_block = kBlock, .one_sequence = 9}), 2);
  EXPECT_EQ(BlocksWithin({.bytes = std::int64_t{1} << 50, .bytes_per_block = 1}), 1u << 30);
  EXPECT_EQ(BlocksWithin({.bytes = std::int64_t{1} << 50,
                          .bytes_per_block = 1,
                          .one_sequence = UINT64_MAX,
                          .most = UINT64_MAX}),
            1u << 30);
}

}  // namespace
}  // namespace flotilla::worker
