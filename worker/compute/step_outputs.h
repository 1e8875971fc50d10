// StepOutputs: which rows of logits one step wants, what each is for, and the output that
// each gives.
//
// A rank takes the rows whose logits it has. Where several ranks share the rows, one rank
// takes a row whole, or all ranks take it in parts. Each rank sends the others what it
// took, as step metadata, and in the end all ranks have the same outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/compute/row_partials.h"
#include "worker/core/group_state.h"

namespace flotilla::worker {

class StepOutputs {
 public:
  // Lists the wanted rows of `batch`. `vocabulary` says how each row is sharded over the
  // ranks that share it, and outlives this object; null: ranks have full rows.
  explicit StepOutputs(const Batch& batch, const VocabularyShards* vocabulary = nullptr);

  // The wanted rows, ascending; request i is about rows()[i].
  absl::Span<const std::int32_t> rows() const { return rows_; }

  // Whether a request wants one rank to have its full row, or each rank its shard.
  bool full_row(int request) const { return !requests_[request].parts; }

  // Turns one row of logits into its output. Any thread may call it, several at a time,
  // once for each request. `batch` is that of the constructor.
  void Take(const kernels::Ops& ops, const Batch& batch, int request,
            absl::Span<const float> logits);
  // Does the same for one shard of a row.
  void TakePart(const kernels::Ops& ops, const Batch& batch, int request, std::uint32_t shard,
                absl::Span<const float> logits);

  // Write appends what rank `rank` of the `ranks` that share the rows took. Of the rows
  // taken whole these are requests rank, rank + ranks, ... Read puts that into the outputs
  // of this object. Every rank reads the metadata of all ranks, its own too, in the order
  // of the ranks. INVALID_ARGUMENT: the metadata is not about these requests.
  void Write(std::uint32_t rank, std::uint32_t ranks, std::vector<std::byte>& metadata) const;
  absl::Status Read(std::uint32_t rank, std::uint32_t ranks, absl::Span<const std::byte> metadata);
  // An upper bound of the bytes that Write appends about so many requests.
  static std::int64_t MaxMetadataBytes(std::int64_t requests, const VocabularyShards* vocabulary);

  // Returns one output per item of the batch. Call it once all requests are taken, or all
  // step metadata is read.
  absl::Span<const ItemOutput> Finish();

 private:
  // The use of one row of logits: a prompt target of an item, one of its samples or its
  // candidates.
  struct Request {
    enum class Kind : std::uint8_t { kPrompt, kSample, kCandidates };
    std::int32_t item;
    Kind kind;
    std::uint32_t at = 0;  // index among the prompt targets or the samples
    bool failed = false;   // the row had no softmax
    bool parts = false;    // taken by shards
    std::int32_t top = 0;  // how many best tokens or candidates are listed
  };

  // Puts a token, or candidates, where the request wants them.
  void Store(Request& wanted, absl::StatusOr<SampledToken> token);
  void Store(Request& wanted, absl::StatusOr<std::vector<TopLogprob>> candidates);
  // Reads what one rank's step metadata says about request i. Returns false if the metadata
  // does not fit the request.
  bool ReadPartial(std::size_t i, std::uint32_t rank, absl::Span<const std::byte>& metadata);
  bool ReadWhole(Request& request, absl::Span<const std::byte>& metadata);

  const VocabularyShards* vocabulary_;
  std::vector<std::int32_t> rows_;
  std::vector<Request> requests_;    // same length
  std::vector<ItemOutput> outputs_;  // one per item
  // For requests that ranks take by shards: this rank's partials, and those read from the
  // metadata of all ranks.
  std::vector<RowPartial> own_parts_, all_partials_;
};

}  // namespace flotilla::worker
