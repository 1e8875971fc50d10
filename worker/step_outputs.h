// StepOutputs: what becomes of the rows of logits of one step: which rows are wanted,
// for what, and what was made of each.
//
// A rank takes the rows that it has logits of. Where several ranks share them, a row is
// taken whole by one of them, or in parts by all; each sends the others what it took (its
// step metadata), and all have the same outputs in the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/core/group_state.h"
#include "worker/sampling/row_partials.h"

namespace flotilla {

class StepOutputs {
 public:
  // Lists the wanted rows of `batch`. `vocabulary`: its shards over the ranks that share
  // each row, which outlives this; null: they have full rows.
  explicit StepOutputs(const Batch& batch, const VocabularyShards* vocabulary = nullptr);

  // Ascending; request i is about rows()[i].
  absl::Span<const std::int32_t> rows() const { return rows_; }

  // Whether a request wants one rank to have its full row, or each rank its shard.
  bool full_row(int request) const { return !requests_[request].parts; }

  // Turns one row of logits into its output; any thread, several at a time, each
  // request once. `batch` is that of the constructor.
  void Take(const kernels::Ops& ops, const Batch& batch, int request,
            absl::Span<const float> logits);
  // The same of one shard.
  void TakePart(const kernels::Ops& ops, const Batch& batch, int request, std::uint32_t shard,
                absl::Span<const float> logits);

  // What rank `rank` of those that share the rows took: of the whole ones, requests rank,
  // rank + ranks, ...; and the same into the outputs of any rank, its own too, in the order
  // of the ranks. INVALID_ARGUMENT: it is not about these requests.
  void Write(std::uint32_t rank, std::uint32_t ranks, std::vector<std::byte>& metadata) const;
  absl::Status Read(std::uint32_t rank, std::uint32_t ranks, absl::Span<const std::byte> metadata);
  // An upper bound of what Write appends about so many requests.
  static std::int64_t MaxNoteBytes(std::int64_t requests, const VocabularyShards* vocabulary);

  // Once all requests are taken, or all step metadata read: one output per item of the batch.
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
    bool parts = false;    // taken by shards
    std::int32_t top = 0;  // best tokens or candidates that are listed
  };

  // Puts a token, or candidates, where the request wants them.
  void Store(Request& wanted, absl::StatusOr<SampledToken> token);
  void Store(Request& wanted, absl::StatusOr<std::vector<TopLogprob>> candidates);
  // Reads what one rank's step metadata says about request i. False: it does not.
  bool ReadPartial(std::size_t i, std::uint32_t rank, absl::Span<const std::byte>& metadata);
  bool ReadWhole(Request& request, absl::Span<const std::byte>& metadata);

  const VocabularyShards* vocabulary_;
  std::vector<std::int32_t> rows_;
  std::vector<Request> requests_;    // same length
  std::vector<ItemOutput> outputs_;  // one per item
  // For requests that ranks take by shards: this rank's partials, and those of all ranks read.
  std::vector<RowPartial> own_parts_, all_partials_;
};

}  // namespace flotilla
