// StagedExchange: the DeviceExchange that goes through pinned memory and the exchange of the host,
// which adds the parts. GPUs and CPUs may be mixed in a group that uses it, and ranks may share a
// GPU.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "worker/comm/exchange.h"
#include "worker/compute/cuda/device_exchange.h"
#include "worker/compute/host/thread_pool.h"
#include "worker/device/device.h"

namespace flotilla::worker {

class StagedExchange final : public DeviceExchange {
 public:
  // `rank` is that in the stage. All others outlive the exchange.
  StagedExchange(std::uint32_t rank, Device& device, Exchange& exchange, const kernels::Ops& ops,
                 ThreadPool& pool)
      : rank_(rank), device_(device), exchange_(exchange), ops_(ops), pool_(pool) {}

  absl::Status Reserve(const SumTree& tree, std::int64_t rows, std::int64_t columns) override;
  absl::StatusOr<const float*> Sum(const SumTree& tree, const float* parts, std::int64_t rows,
                                   std::int64_t columns) override;
  absl::Status SendResidual(const float* data, std::int64_t count, Arena& pinned) override;
  absl::Status ReceiveResidual(float* data, std::int64_t count, Arena& pinned) override;
  void Abort() override { exchange_.Abort(); }

 private:
  // Downloads floats to pinned memory, and waits for them.
  absl::Status Fetch(const float* from, std::int64_t count, float* to);

  const std::uint32_t rank_;
  Device& device_;
  Exchange& exchange_;
  const kernels::Ops& ops_;
  ThreadPool& pool_;
  Device::Memory total_;                        // [rows, columns] fp32
  Device::Memory staged_parts_, staged_total_;  // pinned: parts of this rank, and the sum
};

}  // namespace flotilla::worker
