// StepOutputs: what becomes of the rows of logits of one step: which rows are wanted,
// for what, and what was made of each.
//
// A rank takes the rows that it has logits of. Where several ranks share them, each
// tells the others what it took (a note), and all have the same outputs in the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/core/group_state.h"

namespace flotilla {

class StepOutputs {
 public:
  // Lists the wanted rows of `batch`.
  explicit StepOutputs(const Batch& batch);

  // Ascending; request i is about rows()[i].
  absl::Span<const std::int32_t> rows() const { return rows_; }

  // Turns one row of logits into its output; any thread, several at a time, each
  // request once. `batch` is that of the constructor.
  void Take(const kernels::Ops& ops, const Batch& batch, int request,
            absl::Span<const float> logits);

  // What was taken of requests `first`, first + stride, ...; and the same into the outputs
  // of another rank. INVALID_ARGUMENT: it is not about these requests.
  void Write(std::uint32_t first, std::uint32_t stride, std::vector<std::byte>& note) const;
  absl::Status Read(std::uint32_t first, std::uint32_t stride, absl::Span<const std::byte> note);
  // An upper bound of what Write appends about so many requests.
  static std::int64_t MaxNoteBytes(std::int64_t requests);

  // Once all requests are taken or read: one output per item of the batch.
  absl::Span<const ItemOutput> Finish();

 private:
  // Where one row of logits goes: a prompt target of an item, one of its samples or
  // its candidates.
  struct Request {
    enum class Kind : std::uint8_t { kPrompt, kSample, kCandidates };
    std::int32_t item;
    Kind kind;
    std::uint32_t at = 0;  // index among the prompt targets or the samples
    bool failed = false;   // the row had no softmax
  };

  std::vector<std::int32_t> rows_;
  std::vector<Request> requests_;    // same length
  std::vector<ItemOutput> outputs_;  // one per item
};

}  // namespace flotilla
