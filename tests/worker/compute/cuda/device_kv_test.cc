// DeviceKv over a simulated device: what tiers copy is what computing has written, in every order
// in which the two queues may go on.
#include "worker/compute/cuda/device_kv.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/host_ops.h"
#include "worker/device/simulated_device.h"

namespace flotilla::worker {
namespace {

using Queue = Device::Queue;

constexpr std::uint64_t kSeeds = 50;

class DeviceKvTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    auto kv = DeviceKv::Create(device_, shape_, 6);
    ASSERT_TRUE(kv.ok()) << kv.status();
    kv_ = std::make_unique<DeviceKv>(*std::move(kv));
    host_ = *kv_->Reserve(2);
  }
  void TearDown() override { ASSERT_TRUE(Compute().ok()) << device_.status(); }

  std::byte* block(std::uint32_t id) const {
    return kv_->Layer(0).base + id * kv_->Layer(0).block_stride;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(shape_.bytes_per_block()); }
  // Enqueues, for computing, that the block becomes this.
  void Write(std::uint32_t id, int byte) {
    device_.Fill(Queue::kCompute, block(id), byte, bytes());
  }
  absl::Status Compute() { return device_.Synchronize(device_.Record(Queue::kCompute)); }
  // What a block holds once all that is enqueued is done: its byte, or that it has several.
  std::string Content(std::uint32_t id) {
    const Device::Memory pinned = *device_.AllocatePinned(bytes());
    device_.Download(Queue::kCompute, pinned.data(), block(id), bytes());
    EXPECT_TRUE(Compute().ok());
    return Describe(pinned.data());
  }
  std::string Describe(const std::byte* data) const {
    const bool same = std::all_of(data, data + bytes(), [&](std::byte b) { return b == data[0]; });
    return same ? absl::StrCat(static_cast<int>(data[0])) : "several";
  }

  const KvShape shape_ = KvShape::Equal(kernels::KvFormat::kBf16, 2, 1, kernels::KvDims::Equal(16));
  SimulatedDevice device_{{.seed = GetParam(), .ops = &kernels::cuda::HostOps()}};
  std::unique_ptr<DeviceKv> kv_;
  std::byte* host_ = nullptr;
};

TEST_P(DeviceKvTest, TiersCopyOutWhatIsEnqueuedBeforeThem) {
  kv_->Poison(BlockId{1});
  Write(1, 17);
  kv_->Copy(BlockId{1}, BlockId{2});
  kv_->LetTiersFollow();
  Write(3, 18);  // the queue of computing has more to do
  ASSERT_TRUE(kv_->CopyOut(BlockId{2}, host_).ok());
  EXPECT_EQ(Describe(host_), "17");
}

TEST_P(DeviceKvTest, TiersCopyInBehindWhatReadsTheBlock) {
  std::memset(host_, 40, bytes());
  Write(1, 17);
  kv_->Copy(BlockId{1}, BlockId{2});
  kv_->LetTiersFollow();
  ASSERT_TRUE(kv_->CopyIn(host_, BlockId{1}).ok());
  EXPECT_EQ(Content(1), "40");
  EXPECT_EQ(Content(2), "17");
}

TEST_P(DeviceKvTest, BlocksComeBackAsTheyWere) {
  Write(1, 17);
  Write(2, 18);
  kv_->LetTiersFollow();
  ASSERT_TRUE(kv_->CopyOut(BlockId{2}, host_ + bytes()).ok());
  ASSERT_TRUE(kv_->CopyOut(BlockId{1}, host_).ok());
  kv_->Poison(BlockId{1});
  kv_->Poison(BlockId{2});
  kv_->LetTiersFollow();
  ASSERT_TRUE(kv_->CopyIn(host_ + bytes(), BlockId{1}).ok());
  EXPECT_EQ(Content(1), "18");
  EXPECT_EQ(Content(2), "255");
}

INSTANTIATE_TEST_SUITE_P(Orders, DeviceKvTest, ::testing::Range<std::uint64_t>(1, kSeeds + 1));

}  // namespace
}  // namespace flotilla::worker
