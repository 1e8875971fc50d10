// Exchange: how the ranks of a worker group move activations inside a step.
//
// A backend has one, or none if its rank is alone. The exchange owns the memory into which the last
// product of a part writes, so that no copy lies between a product and the other ranks. The memory
// is of the backend's kind: host memory for the exchanges of this folder. An exchange may only
// enqueue an operation on the stream of its backend, which then enqueues the readers behind it;
// the exchanges of this folder return when the operation is done.
//
// All ranks make the same calls of SharePartials, ShareLogits and of sending and receiving, in the
// same order, so a call needs no name. An exchange never adds:
// it moves parts as they are, and every rank adds them in the order that the recipe fixes
// (SumTree in worker/core/sharding.h). One thread at a time uses it.
//
// Nobody can wait for a rank that has ended. After Abort (by anybody) all waits return at once, and
// the contents that they return mean nothing.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace flotilla::worker {

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Partials to their sum. Partials returns where this rank puts its partial sums of the next
  // product, [sums, rows, outputs] (CommLimits::partial_floats, 64-byte aligned). SharePartials
  // gives `count` floats of them to all ranks of the stage, and returns the parts of all ranks, in
  // order. They are valid until the SharePartials or ShareLogits after the next.
  virtual float* Partials() = 0;
  virtual absl::Span<const float* const> SharePartials(std::int64_t count) = 0;

  // Moves `count` floats of the residual from rank t of a stage to rank t of the next. Sending
  // waits only while two messages are under way.
  virtual void SendResidual(const float* data, std::int64_t count) = 0;
  virtual void ReceiveResidual(float* data, std::int64_t count) = 0;

  // Logits returns a tile of logits, [rows, vocabulary]. Each rank of the stage fills its own
  // columns. ShareLogits completes the first `rows` of the tile where they are read: row i on rank
  // (first_owner + i) modulo the stage's ranks, or every row on all of them. The tile is valid
  // until the tile after the next.
  struct LogitReaders {
    bool all = false;
    std::uint32_t first_owner = 0;
  };
  virtual float* Logits() = 0;
  virtual void ShareLogits(std::int64_t rows, LogitReaders readers) = 0;

  // Any thread may call it.
  virtual void Abort() = 0;
};

}  // namespace flotilla::worker
