// StepOutputs: which rows of logits one step wants, what each is for, and the output that
// each gives.
//
// The constructor lists the wanted rows; AddRequests asks a backend for them. The backend reduces
// each row to partials, or gives full rows to one of the ranks that share it. Each of these ranks
// sends the others what it got, as step metadata, and in the end all ranks have the same outputs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/compute/backend.h"
#include "worker/compute/row_masks.h"
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
  // constructor, and is not needed afterwards. Penalties are counted by `on_host`, which is
  // Backend::OnHost.
  using OnHost = absl::FunctionRef<void(std::int64_t, absl::FunctionRef<void(std::int64_t)>)>;
  void AddRequests(const Batch& batch, OnHost on_host, StepInputs& inputs);

  // The items, in order, of whose rows this one of the `ranks` that share them draws some under a
  // constraint. Their masks are to be had from `masks`, which numbers them so. Call it before the
  // inputs go to the backend, if there are such items.
  std::vector<std::size_t> ConstrainedItems(std::uint32_t rank, std::uint32_t ranks);
  void UseMasks(std::shared_ptr<RowMasks> masks) { masks_ = std::move(masks); }

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
    // Whether it has its token or candidates, and why not.
    enum class State : std::uint8_t {
      kDone,
      kFailed,   // the row had no softmax
      kLate,     // the mask of the constraint was late
      kRefused,  // the constraint ends the sequence
      kNoRoom,   // the same, but a later try may succeed
      kNoToken,  // there are no candidates, since the constraint allows no token
    };
    std::uint32_t at = 0;  // index among the prompt targets or the samples
    State state = State::kDone;
    bool full_row = false;    // one rank draws from the whole row
    bool is_masked = false;   // it draws under a constraint
    std::size_t mask_of = 0;  // the number of the item for RowMasks
    std::int32_t top = 0;     // how many best tokens or candidates are listed
  };

  // Puts a token, or candidates, where the request wants them.
  void Store(Request& wanted, absl::StatusOr<SampledToken> token);
  void Store(Request& wanted, absl::StatusOr<std::vector<TopLogprob>> candidates);
  // Reads what one rank's step metadata says about request i. Returns false if the metadata
  // does not fit the request.
  bool ReadPartial(std::size_t i, std::uint32_t rank, absl::Span<const std::byte>& metadata);
  bool ReadFullRow(Request& request, absl::Span<const std::byte>& metadata);
  // Keeps why the constraint of an item ends it, or leaves no candidates: the reason of its first
  // row that is refused.
  void Refuse(const Request& request, std::string reason);
  static bool IsRefused(const Request& request) {
    return request.state == Request::State::kRefused || request.state == Request::State::kNoRoom ||
           request.state == Request::State::kNoToken;
  }

  const VocabularyShards& vocabulary_;
  const kernels::Ops& ops_;
  std::vector<Request> requests_;    // ascending rows
  std::vector<ItemOutput> outputs_;  // one per item
  std::vector<TokenDraw> draws_;     // by request; used by full rows
  std::shared_ptr<RowMasks> masks_;  // of those that draw under a constraint
  std::atomic<bool> mask_was_late_{false};
  std::vector<std::string> refusals_;  // by request; of those that are refused
  // Of the requests without a full row: this rank's partials, and those read from the metadata of
  // all ranks.
  std::vector<RowPartial> own_partials_, all_partials_;
};

}  // namespace flotilla::worker
