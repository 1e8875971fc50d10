// StepOutputs: which rows of logits one step wants, what each is for, and the output that
// each gives.
//
// The constructor lists the wanted rows; AddRequests asks a backend for them. The backend reduces
// each row to partials, or gives full rows to one of the ranks that share it. Each of these ranks
// sends the others what it got, as step metadata, and in the end all ranks have the same outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/compute/backend.h"
#include "worker/compute/row_partials.h"
#include "worker/compute/sampler.h"
#include "worker/core/group_state.h"

namespace flotilla::worker {

class StepOutputs final : public RowReceiver {
 public:
  // Lists the wanted rows of `batch`. `vocabulary` says how each row is sharded over the ranks
  // that share it, and outlives this object, as `ops` does, which draws from full rows.
  StepOutputs(const Batch& batch, const VocabularyShards& vocabulary, const kernels::Ops& ops);

  // Adds a request for each wanted row to the inputs of the step. `batch` is that of the
  // constructor, and is not needed afterwards. Penalties are counted on the threads of `backend`.
  void AddRequests(const Batch& batch, Backend& backend, StepInputs& inputs);

  // Draws from a full row; any thread, several at a time.
  void TakeRow(int request, absl::Span<const float> logits) override;
  // Takes what Backend::Finish returned.
  void TakePartials(std::vector<RowPartial> partials) { own_partials_ = std::move(partials); }

  // Write appends what rank `rank` of the `ranks` that share the rows got. Of the full rows these
  // are requests rank, rank + ranks, ... Read puts that into the outputs of this object. Every rank
  // reads the metadata of all ranks, its own too, in the order of the ranks. INVALID_ARGUMENT: the
  // metadata is not about these requests.
  void Write(std::uint32_t rank, std::uint32_t ranks, std::vector<std::byte>& metadata) const;
  absl::Status Read(std::uint32_t rank, std::uint32_t ranks, absl::Span<const std::byte> metadata);
  // An upper bound of the bytes that Write appends about so many requests.
  static std::int64_t MaxMetadataBytes(std::int64_t requests, const VocabularyShards& vocabulary);

  // Returns one output per item of the batch. Call it once the metadata of all ranks is read. A
  // rank that is alone reads none, and calls it once its own partials are taken.
  absl::Span<const ItemOutput> Finish();

 private:
  // The use of one row of logits: a prompt target of an item, one of its samples or its
  // candidates.
  struct Request {
    enum class Kind : std::uint8_t { kPrompt, kSample, kCandidates };
    std::int32_t item;
    std::int32_t row = 0;  // of the batch
    Kind kind;
    std::uint32_t at = 0;   // index among the prompt targets or the samples
    bool failed = false;    // the row had no softmax
    bool full_row = false;  // one rank draws from the whole row
    std::int32_t top = 0;   // how many best tokens or candidates are listed
  };

  // Puts a token, or candidates, where the request wants them.
  void Store(Request& wanted, absl::StatusOr<SampledToken> token);
  void Store(Request& wanted, absl::StatusOr<std::vector<TopLogprob>> candidates);
  // Reads what one rank's step metadata says about request i. Returns false if the metadata
  // does not fit the request.
  bool ReadPartial(std::size_t i, std::uint32_t rank, absl::Span<const std::byte>& metadata);
  bool ReadFullRow(Request& request, absl::Span<const std::byte>& metadata);

  const VocabularyShards& vocabulary_;
  const kernels::Ops& ops_;
  std::vector<Request> requests_;    // ascending rows
  std::vector<ItemOutput> outputs_;  // one per item
  std::vector<TokenDraw> draws_;     // by request; used by full rows
  // Of the requests without a full row: this rank's partials, and those read from the metadata of
  // all ranks.
  std::vector<RowPartial> own_partials_, all_partials_;
};

}  // namespace flotilla::worker
