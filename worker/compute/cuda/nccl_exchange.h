// NcclExchange: the DeviceExchange that moves floats from GPU to GPU with NCCL. Each rank has a GPU
// of its own. NCCL only sends and receives; the device adds with the op `add`.
//
// All ranks of the group share one communicator, which Join makes and tries. A small sum is made by
// every rank: each sends all of its parts to the others. Of a large one each rank makes a slice: it
// gets only the slice's parts, and sends the sum of the slice to the others. That moves about 2 /
// ranks of the bytes, and each number is still added in the same order.
//
// NCCL has no call that waits and can be ended, so the communicator is a non-blocking one: calls
// may go on behind their return, and are asked whether they have ended, within a limit of time. A
// thread of the exchange, the watchdog, sleeps unless a step or Join is under way, and otherwise
// looks now and then whether NCCL has failed, the group has ended, or Join takes too long. The
// first error, or Abort, aborts the communicator, once: then also kernels that wait for a dead rank
// end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rt/load_progress.h"
#include "worker/compute/cuda/device_exchange.h"
#include "worker/compute/cuda/nccl_api.h"
#include "worker/device/device.h"

namespace flotilla::worker {

struct NcclExchangeOptions {
  // Sums of more floats are made in slices: 256 KiB take longer to move than a message takes to
  // begin (about 10 us at 25 GB/s and more). Not measured.
  static constexpr std::int64_t kWholeFloats = 64 << 10;

  std::shared_ptr<const NcclApi> api;
  ParallelShape shape;
  std::uint32_t rank = 0;  // of the group
  // Whether the group has ended otherwise. Any thread calls it; null: it never does.
  std::function<bool()> ended;
  std::int64_t whole_floats = kWholeFloats;
  // A call of NCCL takes longer only if a rank hangs. Joining takes seconds with many GPUs.
  absl::Duration call_limit = absl::Seconds(120);
  // Learns that Join goes on, so that nobody takes its rank for a hung one; outlives it. Null:
  // nobody wants to know.
  LoadProgress* progress = nullptr;
};

class NcclExchange final : public DeviceExchange {
 public:
  // The device outlives the exchange.
  NcclExchange(NcclExchangeOptions options, Device& device);
  ~NcclExchange() override;

  // Joins the ranks, and sends a message along each way that steps use, which also makes NCCL take
  // its memory. Every rank calls it once, before all else, with the id that one of them made.
  absl::Status Join(const NcclApi::UniqueId& id);

  absl::Status Reserve(const SumTree& tree, std::int64_t rows, std::int64_t columns) override;
  absl::StatusOr<const float*> Sum(const SumTree& tree, const float* parts, std::int64_t rows,
                                   std::int64_t columns) override;
  absl::Status SendResidual(const float* data, std::int64_t count, Arena& pinned) override;
  absl::Status ReceiveResidual(float* data, std::int64_t count, Arena& pinned) override;
  void BeginStep() override;
  void EndStep() override;
  absl::Status status() override;
  void Abort() override;

 private:
  // A message to a rank of the group, or from it.
  struct Message {
    bool send;
    std::uint32_t peer;
    float* data;
    std::int64_t count;
  };

  std::uint32_t tensor_rank() const { return options_.rank % options_.shape.tensor; }
  std::uint32_t PeerOf(std::uint32_t tensor_rank) const {
    return options_.rank - this->tensor_rank() + tensor_rank;
  }

  // Sends the rank's number to those that it exchanges with, and compares theirs.
  absl::Status Try();
  // Enqueues messages that NCCL moves together. `what` goes on "NCCL failed in".
  absl::Status Move(std::string_view what, std::vector<Message> messages);
  void MoveNow(std::string_view what, const std::vector<Message>& messages,
               kernels::cuda::Stream stream);
  // Enqueues the sum of `count` floats of each part, from where `part_at` says, to `out`.
  void Add(const SumTree& tree, const std::function<const float*(const SumTree::Part&)>& part_at,
           std::int64_t count, float* out);
  absl::StatusOr<const float*> SumWhole(const SumTree& tree, const float* parts,
                                        std::int64_t count);
  absl::StatusOr<const float*> SumSlices(const SumTree& tree, const float* parts,
                                         std::int64_t count);

  absl::Status TooLong(std::string_view what) const;
  void Watch();
  // Looks once whether anything has failed. Then the communicator is aborted.
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for the end of a call that has returned `result`. False: it has failed.
  bool Settle(std::string_view what, int result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailCall(std::string_view what, int result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const NcclExchangeOptions options_;
  const NcclApi& api_;
  Device& device_;
  Device::Memory received_;   // parts of all ranks of the stage, of all columns or of a slice
  Device::Memory registers_;  // of the sum's program, but register 0
  Device::Memory total_;

  // Held in each call of NCCL, and while one that goes on is asked whether it has ended; Settle
  // lets others have it in between.
  absl::Mutex mu_;
  NcclApi::Comm comm_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;                             // steps, and Join
  absl::Time join_end_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // of its limit; then: none
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watchdog_;
};

}  // namespace flotilla::worker
