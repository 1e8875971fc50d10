// DeviceKv: the memory behind the block ids of one rank, on a device. Blocks are laid out as
// KvShape says, with the records of kernels/cuda/ops.h.
//
// The backend enqueues its work for computing. The thread of the tiers (TieredBlocks) uses the
// queue of copies, behind the events for which that queue waits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/ids.h"
#include "kernels/cuda/ops.h"
#include "worker/compute/host/tier_store.h"
#include "worker/compute/kv_shape.h"
#include "worker/device/device.h"

namespace flotilla::worker {

class DeviceKv final : public TieredBlocks {
 public:
  // UNIMPLEMENTED: GPUs have no such K and V; RESOURCE_EXHAUSTED: the device has not enough memory.
  // The device outlives it.
  static absl::StatusOr<DeviceKv> Create(Device& device, const KvShape& shape,
                                         std::uint32_t blocks);

  // The cache of one layer as kernels see it; the caller sets the tables.
  kernels::cuda::KvView Layer(int layer) const;

  // Enqueue, for computing: every number of a block becomes NaN; one block becomes as another.
  void Poison(BlockId block);
  void Copy(BlockId from, BlockId to);
  // What tiers copy from now on begins behind what is enqueued for computing.
  void LetTiersFollow();

  std::int64_t bytes_per_block() const override { return shape_.bytes_per_block(); }
  absl::StatusOr<std::byte*> Reserve(std::uint32_t blocks) override;
  // 256 MiB: pinned memory is made page by page.
  std::uint32_t blocks_at_a_time() const override {
    return static_cast<std::uint32_t>(
        std::max<std::int64_t>((std::int64_t{256} << 20) / shape_.bytes_per_block(), 1));
  }
  absl::Status CopyOut(BlockId from, std::byte* to) override;
  absl::Status CopyIn(const std::byte* from, BlockId to) override;

 private:
  DeviceKv(Device& device, const KvShape& shape) : device_(&device), shape_(shape) {}
  std::byte* block(BlockId id) const {
    return memory_.data() + id.value() * shape_.bytes_per_block();
  }
  std::size_t bytes() const { return static_cast<std::size_t>(shape_.bytes_per_block()); }

  Device* device_;
  KvShape shape_;
  Device::Memory memory_;
  std::vector<Device::Memory> reserved_;
};

}  // namespace flotilla::worker
