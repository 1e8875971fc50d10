// Communicator: how the ranks of a worker group tell each other about a step, and end together.
//
// Each rank has one. It carries step metadata, which is small and lies in host memory; activations
// go through an Exchange. All ranks make the same calls in the same order, so a call needs no name.
// One thread at a time uses it; between steps nobody waits. SharedMemoryCommunicator and
// MpiCommunicator are communicators and exchanges in one.
//
// Nobody can wait for a rank that has ended. After Abort (by anybody) all waits return
// at once, and the contents that they return mean nothing. The caller therefore checks
// `aborted` before it uses what a step made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/core/sharding.h"

namespace flotilla::worker {

class Communicator {
 public:
  virtual ~Communicator() = default;

  ParallelShape shape() const { return shape_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t tensor_rank() const { return rank_ % shape_.tensor; }
  std::uint32_t stage() const { return rank_ / shape_.tensor; }
  bool first_stage() const { return stage() == 0; }
  bool last_stage() const { return stage() + 1 == shape_.pipeline; }
  // The rank whose result is the group's.
  bool head() const { return rank_ + shape_.tensor == shape_.ranks(); }

  // Sends this rank's metadata of a step to all ranks of the group, itself included. Each
  // rank calls it once per step. At most CommLimits::metadata_bytes (checked).
  virtual void SendMetadata(absl::Span<const std::byte> metadata) = 0;
  // Waits for the step metadata of all ranks about the oldest step not taken, and returns
  // it. Valid until the next call.
  virtual absl::Span<const std::vector<std::byte>> TakeMetadata() = 0;

  // Called between steps: moves on messages of this rank that others have not received
  // yet. Returns false when there are none.
  virtual bool Progress() { return false; }

  // Any thread may call it.
  virtual void Abort() = 0;
  virtual bool aborted() const = 0;

 protected:
  Communicator(ParallelShape shape, std::uint32_t rank) : shape_(shape), rank_(rank) {}

 private:
  const ParallelShape shape_;
  const std::uint32_t rank_;
};

}  // namespace flotilla::worker
