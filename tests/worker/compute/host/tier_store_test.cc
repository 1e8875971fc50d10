// Copies between the KV cache and its tiers: contents, order, ends, failures.
#include "worker/compute/host/tier_store.h"
#include "worker/compute/cpu/kv_cache.h"

#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = BackgroundCopy::Kind;

class TierStoreTest : public ::testing::Test {
 protected:
  void Open(TierOptions options) {
    const KvShape shape =
        KvShape::Equal(kernels::KvFormat::kBf16, 2, 1, kernels::KvDims::Equal(16));
    cache_ = KvCache::Create(shape, 9).value();
    store_ = TierStore::Create(options, cache_, clock_).value();
  }
  void Fill(std::uint32_t block, int value) {
    std::memset(cache_.Block(BlockId(block)), value, cache_.shape().bytes_per_block());
  }
  int ValueOf(std::uint32_t block) { return static_cast<int>(*cache_.Block(BlockId(block))); }
  std::vector<std::uint64_t> Wait() { return store_->TakeDone(true).value(); }
  // Waits until `count` copies have ended, and returns their ends.
  std::vector<std::uint64_t> WaitFor(std::size_t count) {
    std::vector<std::uint64_t> all;
    while (all.size() < count) {
      for (const std::uint64_t id : Wait()) all.push_back(id);
    }
    return all;
  }

  SteadyClock clock_;
  KvCache cache_;
  std::unique_ptr<TierStore> store_;
};

TEST_F(TierStoreTest, WithoutTiersThereIsNothingToWaitFor) {
  Open({});
  EXPECT_THAT(store_->tiers(), IsEmpty());
  EXPECT_THAT(Wait(), IsEmpty());
  store_->Reset();
}

TEST_F(TierStoreTest, BlocksComeBackAsTheyWere) {
  Open({.host_blocks = 4, .disk_blocks = 5});
  ASSERT_EQ(store_->tiers().size(), 2u);
  EXPECT_EQ(store_->tiers()[0].kind, KvTier::Kind::kHost);
  EXPECT_EQ(store_->tiers()[1].kind, KvTier::Kind::kDisk);
  for (const KvTier& tier : store_->tiers()) {
    EXPECT_GT(tier.out_ns_per_block, 0);
    EXPECT_GT(tier.in_ns_per_block, 0);
  }
  for (std::uint32_t tier = 0; tier < 2; ++tier) {
    for (std::uint32_t b = 1; b < 9; ++b) Fill(b, static_cast<int>(10 * tier + b));
    store_->Start({.id = 10 * tier + 1,
                   .kind = Kind::kOut,
                   .tier = tier,
                   .moves = {{BlockId(3), 0}, {BlockId(5), 3}}});
    EXPECT_THAT(WaitFor(1), ElementsAre(10 * tier + 1));
    Fill(3, 0);
    Fill(5, 0);
    // Copies run in the order in which they start, so block 8 gets what slot 0 has by then.
    store_->Start(
        {.id = 10 * tier + 2, .kind = Kind::kIn, .tier = tier, .moves = {{BlockId(7), 3}}});
    store_->Start(
        {.id = 10 * tier + 3, .kind = Kind::kOut, .tier = tier, .moves = {{BlockId(2), 0}}});
    store_->Start(
        {.id = 10 * tier + 4, .kind = Kind::kIn, .tier = tier, .moves = {{BlockId(8), 0}}});
    EXPECT_THAT(WaitFor(3), ElementsAre(10 * tier + 2, 10 * tier + 3, 10 * tier + 4));
    EXPECT_EQ(ValueOf(7), static_cast<int>(10 * tier + 5));
    EXPECT_EQ(ValueOf(8), static_cast<int>(10 * tier + 2));
  }
  EXPECT_THAT(Wait(), IsEmpty());  // nothing is under way
}

TEST_F(TierStoreTest, ResetForgets) {
  Open({.host_blocks = 4});
  for (std::uint64_t id = 1; id < 50; ++id) {
    store_->Start({.id = id, .kind = Kind::kOut, .tier = 0, .moves = {{BlockId(1), 0}}});
  }
  store_->Reset();
  EXPECT_THAT(Wait(), IsEmpty());
}

TEST_F(TierStoreTest, RefusesWhatTheMachineHasNot) {
  const KvShape shape = KvShape::Equal(kernels::KvFormat::kBf16, 2, 1, kernels::KvDims::Equal(16));
  cache_ = KvCache::Create(shape, 9).value();
  const auto error = [&](TierOptions options) {
    return TierStore::Create(options, cache_, clock_).status();
  };
  EXPECT_TRUE(absl::IsResourceExhausted(error({.host_blocks = ~0u})));
  const absl::Status none = error({.disk_blocks = 1, .disk_directory = "/nonexistent"});
  EXPECT_TRUE(absl::IsUnavailable(none));
  EXPECT_THAT(std::string(none.message()), HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace flotilla::worker
