#include "worker/compute/cpu/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <gtest/gtest.h>

#include "model/spec.h"
#include "worker/compute/model_shard.h"

namespace flotilla::worker {
namespace {

const KvShape kShape = KvShape::Equal(kernels::KvFormat::kF32, 3, 2, kernels::KvDims::Equal(32));

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
  ExpectWholeBlocks(
      KvShape::Equal(kernels::KvFormat::kBf16, 3, 2, {.key = 576, .value = 512, .prefix = true}),
      576 * 16 * 2);
}

// Each byte of a page is of at most one record of a group, and layers of other formats lie behind
// each other.
TEST(KvCacheTest, LayersMayHaveFormatsOfTheirOwn) {
  using enum kernels::KvType;
  model::ModelSpec spec;
  const model::AttentionSpec attention{.heads = 2, .kv_heads = 2, .head_dim = 32, .value_dim = 32};
  for (int layer = 0; layer < 7; ++layer) {
    spec.layers.push_back({.attention = attention});
    spec.layers.back().attention.kv_group = layer % 3 == 0 ? 1 : 0;
  }
  spec.kv_groups = {{.window = 8}, {}};
  KvFormats formats = kernels::KvFormat{kInt8, kInt8};
  formats.some = {{{0, 2}, {kBf16, kBf16}}, {{5, 6}, {kInt8, kF16}}};
  EXPECT_EQ(formats.Name(), "int8; layers 0-1: bf16; layer 5: int8, V fp16");
  const IndexRange stage{1, 7};
  const KvShape shape = KvShapeOf(spec, formats, stage, 2);
  ASSERT_EQ(shape.layers.size(), 6u);
  auto cache = KvCache::Create(shape, 2);
  ASSERT_TRUE(cache.ok());
  std::int64_t largest = 0;
  for (const std::uint32_t group : {0u, 1u}) {
    std::int64_t end = 0;
    for (std::uint32_t layer = stage.begin; layer < stage.end; ++layer) {
      if (spec.layers[layer].attention.kv_group != group) continue;
      const kernels::KvView view = cache->Layer(static_cast<int>(layer - stage.begin));
      EXPECT_EQ(view.format, formats.Of(layer)) << layer;
      EXPECT_EQ(view.base - cache->Block(BlockId{0}), end) << layer;
      EXPECT_EQ(view.head_stride, kernels::KvRecordBytes(view.format, view.dims));
      end += 2 * view.head_stride;
    }
    largest = std::max(largest, end);
  }
  EXPECT_EQ(shape.bytes_per_block(), largest);
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
  EXPECT_EQ(KvCache::Create(KvShape::Equal(kernels::KvFormat::kF32, 1 << 10, 1 << 10,
                                           kernels::KvDims::Equal(256)),
                            0xFFFFFFFF)
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(KvCacheTest, DefaultHoldsAtLeastOneWholeSequence) {
  EXPECT_GT(DefaultBlockCount(kShape, 1 << 20), 1u << 20);
  EXPECT_LE(DefaultBlockCount(kShape, 16) * kShape.bytes_per_block(), (2ll << 30) + 12288 * 2);
}

}  // namespace
}  // namespace flotilla::worker
