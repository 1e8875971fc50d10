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

// Layers that are kept by runs, and the others of the same model: heads do not overlap, in a block
// and in an open run.
TEST(KvCacheTest, RunsAreBlocksOfAllLayers) {
  using enum kernels::KvType;
  model::ModelSpec spec;
  for (int layer = 0; layer < 5; ++layer) {
    spec.layers.push_back(
        {.attention = {.heads = 2, .kv_heads = 2, .head_dim = 32, .value_dim = 48}});
  }
  spec.kv_groups = {{}};
  KvFormats formats = kernels::KvFormat{kInt4, kInt4};
  formats.some = {{{1, 2}, {kBf16, kBf16}}, {{2, 3}, {kInt8, kInt2}}, {{3, 4}, {kInt2, kF32}}};
  ASSERT_TRUE(formats.has_runs());
  const KvShape shape = KvShapeOf(spec, formats, {0, 5}, 2);
  EXPECT_EQ(shape.block_tokens, kernels::kKvRunTokens);
  auto cache = KvCache::Create(shape, 3, 2);
  ASSERT_TRUE(cache.ok());
  std::int64_t end = 0, open_end = 0;
  for (int layer = 0; layer < 5; ++layer) {
    SCOPED_TRACE(layer);
    const kernels::KvView view = cache->Layer(layer), open = cache->OpenRuns(layer);
    EXPECT_EQ(view.block_tokens, kernels::kKvRunTokens);
    EXPECT_EQ(view.base - cache->Block(BlockId{0}), end);
    EXPECT_EQ(view.head_stride % 64, 0);
    EXPECT_GE(view.head_stride, 4 * kernels::KvRecordBytes(view.format, view.dims) +
                                    (HasRuns(view.format.key) ? 4 * 32 : 0));
    end += 2 * view.head_stride;
    ASSERT_EQ(open.base != nullptr, layer != 1);
    if (open.base == nullptr) continue;
    EXPECT_EQ(open.base - cache->OpenRuns(0).base, open_end);
    EXPECT_EQ(open.block_stride, shape.open_bytes);
    // 64 tokens of what is kept by runs, in bf16, and position 0, filled up.
    const int elements =
        (HasRuns(view.format.key) ? 32 : 0) + (HasRuns(view.format.value) ? 48 : 0);
    EXPECT_EQ(open.head_stride, 64 * 2 * elements + (2 * elements + 63) / 64 * 64);
    open_end += 2 * open.head_stride;
  }
  EXPECT_EQ(shape.bytes_per_block(), end);
  EXPECT_EQ(shape.open_bytes, open_end);

  const auto run = [&](int layer, int id) {
    return cache->OpenRuns(layer).base + id * shape.open_bytes;
  };
  std::memset(run(0, 0), 1, shape.open_bytes);
  cache->CopyRun(2, 0, 1);
  EXPECT_EQ(run(0, 1)[0], std::byte{0});
  // The four records of each head, and not position 0 behind them.
  const kernels::KvView open = cache->OpenRuns(2);
  const std::int64_t first = kernels::KvFirstOffset(open.dims);
  for (int head = 0; head < 2; ++head) {
    const std::byte* const at = run(2, 1) + head * open.head_stride;
    EXPECT_EQ(at[0], std::byte{1});
    EXPECT_EQ(at[first - 1], std::byte{1});
    EXPECT_EQ(at[first], std::byte{0});
    EXPECT_EQ(at[open.head_stride - 1], std::byte{0});
  }
  EXPECT_EQ(run(3, 1)[0], std::byte{0});
  cache->CopyRun(0, 1);
  EXPECT_EQ(0, std::memcmp(run(0, 0), run(0, 1), shape.open_bytes));
}

// Without layers that are kept by runs there are none, and blocks hold 16 tokens.
TEST(KvCacheTest, NoRunsNoOpenRuns) {
  EXPECT_EQ(kShape.block_tokens, kernels::kKvRecordTokens);
  EXPECT_EQ(kShape.open_bytes, 0);
  auto cache = KvCache::Create(kShape, 2, 4);
  ASSERT_TRUE(cache.ok());
  EXPECT_EQ(cache->OpenRuns(0).base, nullptr);
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

}  // namespace
}  // namespace flotilla::worker
