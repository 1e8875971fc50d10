// Communicator: how the ranks of a worker group exchange data inside a step.
//
// One per rank; all ranks make the same calls in the same order, and so a call needs no
// name. Sums never happen here: parts are exchanged as they are, and every rank adds
// them in the order that the recipe fixes. One thread at a time; between steps nobody
// waits. Implementations: SharedMemoryCommunicator, MpiCommunicator.
//
// A rank that ends cannot be waited for: after Abort (by anybody) all waits return at
// once with contents that mean nothing. Whoever uses what a step made asks `aborted`
// first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/core/sharding.h"

namespace flotilla {

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
  // Gives `count` floats of it to all ranks of the stage and waits for theirs; the parts
  // of each, in order. Valid until the exchange or logits after the next.
  virtual absl::Span<const float* const> Exchange(std::int64_t count) = 0;

  // A tile of logits that all ranks of the stage fill, each its own columns; then they
  // wait until all have the first `rows` of it. Valid until the tile after the next.
  virtual float* Logits() = 0;
  virtual void ShareLogits(std::int64_t rows) = 0;

  // From rank t of a stage to rank t of the next: `count` floats. Sending waits only
  // while two are under way.
  virtual void SendHidden(const float* data, std::int64_t count) = 0;
  virtual void ReceiveHidden(float* data, std::int64_t count) = 0;

  // What this rank sends to all ranks of the group, itself included, about a step:
  // once a step each. At most Limits::metadata_bytes (checked).
  virtual void SendMetadata(absl::Span<const std::byte> metadata) = 0;
  // The step metadata of all ranks about the oldest step not taken. Waits for them. Valid until
  // the next call.
  virtual absl::Span<const std::vector<std::byte>> TakeMetadata() = 0;

  // Between steps: moves on what this rank has sent and others have not got yet; false:
  // there is nothing.
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

}  // namespace flotilla
