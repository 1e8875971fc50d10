#include "worker/compute/cpu/kv_cache.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

namespace flotilla::worker {
namespace {

constexpr KvShape kShape{kernels::KvFormat::kF32, 3, 2, kernels::KvDims::Equal(32)};

void ExpectWholeBlocks(const KvShape& shape, int64_t record) {
  auto cache = KvCache::Create(shape, 4);
  ASSERT_TRUE(cache.ok());
  EXPECT_EQ(shape.bytes_per_block(), 6 * record);
  std::vector<int> owners(4 * shape.bytes_per_block() / record);
  const std::byte* base = cache->Layer(0).base;
  for (int layer = 0; layer < 3; ++layer) {
    const kernels::KvView view = cache->Layer(layer);
    for (int block = 0; block < 4; ++block) {
      for (int head = 0; head < 2; ++head) {
        const int64_t at = view.base + block * view.block_stride + head * view.head_stride - base;
        EXPECT_EQ(at % 64, 0);
        ++owners.at(at / record);
      }
    }
  }
  EXPECT_EQ(owners, std::vector<int>(owners.size(), 1));
}

TEST(KvCacheTest, RecordsOfABlockDoNotOverlapAndFillIt) {
  ExpectWholeBlocks(kShape, 2 * 32 * 16 * 4);
}

// Two bytes for each of 576 numbers of a token, whatever V is.
TEST(KvCacheTest, APrefixOfKHasNoMemoryOfItsOwn) {
  KvShape shape = kShape;
  shape.format = kernels::KvFormat::kBf16;
  shape.dims = {.key = 576, .value = 512, .prefix = true};
  ExpectWholeBlocks(shape, 576 * 16 * 2);
}

TEST(KvCacheTest, CopiesAndPoisonsWholeBlocksOnly) {
  auto cache = KvCache::Create(kShape, 4);
  ASSERT_TRUE(cache.ok());
  const int64_t floats = kShape.bytes_per_block() / 4;
  const auto block = [&](int b) {
    return reinterpret_cast<float*>(cache->Layer(0).base + b * kShape.bytes_per_block());
  };
  for (int64_t i = 0; i < floats; ++i) block(2)[i] = static_cast<float>(i);
  cache->Poison(BlockId{3});
  cache->CopyBlock(BlockId{2}, BlockId{1});
  EXPECT_EQ(0, std::memcmp(block(1), block(2), kShape.bytes_per_block()));
  for (int64_t i = 0; i < floats; ++i) {
    ASSERT_EQ(block(0)[i], 0.0f);
    ASSERT_TRUE(std::isnan(block(3)[i]));
  }
}

TEST(KvCacheTest, RefusesMoreThanTheMachineHas) {
  EXPECT_EQ(
      KvCache::Create({kernels::KvFormat::kF32, 1 << 20, 1 << 10, 256}, 0xFFFFFFFF).status().code(),
      absl::StatusCode::kResourceExhausted);
}

TEST(KvCacheTest, DefaultHoldsAtLeastOneWholeSequence) {
  EXPECT_GT(DefaultBlockCount(kShape, 1 << 20), 1u << 20);
  EXPECT_LE(DefaultBlockCount(kShape, 16) * kShape.bytes_per_block(), (2ll << 30) + 12288 * 2);
}

}  // namespace
}  // namespace flotilla::worker
