// Communicator: how the ranks of a worker group exchange data inside a step.
//
// Each rank has one. All ranks make the same calls in the same order, so a call needs no
// name. A communicator never adds: it exchanges parts as they are, and every rank adds
// them in the order that the recipe fixes. One thread at a time uses it; between steps
// nobody waits. Implementations: SharedMemoryCommunicator, MpiCommunicator.
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
  // Sizes that all ranks agree on.
  struct Limits {
    std::int64_t exchange_floats = 0;  // one rank's part of an exchange
    std::int64_t logit_floats = 0;     // a tile of logits, whole rows
    std::int64_t hidden_floats = 0;    // what a stage hands to the next
    std::int64_t metadata_bytes = 0;   // what a rank sends to all others about a step
    std::uint32_t lag = 1;             // steps that may be applied and not completed
  };

  virtual ~Communicator() = default;

  ParallelShape shape() const { return shape_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t tensor_rank() const { return rank_ % shape_.tensor; }
  std::uint32_t stage() const { return rank_ / shape_.tensor; }
  bool first_stage() const { return stage() == 0; }
  bool last_stage() const { return stage() + 1 == shape_.pipeline; }
  // The rank whose result is the group's.
  bool head() const { return rank_ + shape_.tensor == shape_.ranks(); }

  // Where this rank puts its part of the next Exchange (Limits::exchange_floats, 64-byte
  // aligned).
  virtual float* Outgoing() = 0;
  // Gives `count` floats of Outgoing() to all ranks of the stage and waits for theirs.
  // Returns the parts of all ranks, in order. They are valid until the exchange or logits
  // after the next.
  virtual absl::Span<const float* const> Exchange(std::int64_t count) = 0;

  // Logits returns a tile of logits. Each rank of the stage fills its own columns.
  // ShareLogits waits until all ranks have the first `rows` of the tile. The tile is valid
  // until the tile after the next.
  virtual float* Logits() = 0;
  virtual void ShareLogits(std::int64_t rows) = 0;

  // Moves `count` floats from rank t of a stage to rank t of the next. Sending waits only
  // while two messages are under way.
  virtual void SendHidden(const float* data, std::int64_t count) = 0;
  virtual void ReceiveHidden(float* data, std::int64_t count) = 0;

  // Sends this rank's metadata of a step to all ranks of the group, itself included. Each
  // rank calls it once per step. At most Limits::metadata_bytes (checked).
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
