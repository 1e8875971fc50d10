// GroupState: the sequences of one worker group as its ranks see them.
//
// GroupState is a pure state machine. Every rank, the fake executor and the simulation
// use it. Plans go in, and the flat work of a step comes out; sampled tokens go in, and
// the step's result comes out. GroupState decides which sequences decode, which are
// finished, and whether scheduler and ranks still agree (PlanDigest). It knows no
// tensors, clocks, threads or randomness. One thread at a time may use it.
//
//   GroupState state(epoch, description);
//   absl::StatusOr<Batch> batch = state.Apply(plan);        // per plan, in order
//   std::vector<ItemOutput> outputs = Compute(*batch);      // one per item
//   absl::StatusOr<StepResult> result = state.Complete(plan.step, outputs);
//
// With a lag of L, up to L plans may be applied and not completed (a pipeline of
// L stages). Completions come in step order. The cost of a plan grows with its
// operations and its batch, never with context length or idle sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/digest.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "worker/core/proposer.h"

namespace flotilla::worker {

// One sequence's rows in the flat batch of a step.
struct BatchItem {
  SequenceHandle sequence;
  SequenceIndex index;               // within its request; part of the noise key
  std::uint32_t first_position = 0;  // absolute position of the first row
  std::uint32_t row_begin = 0;       // first row in Batch::tokens
  std::uint32_t row_count = 0;       // at least 1; 1 + drafts for decodes
  bool decode = false;               // continues from the token sampled last
  // Number of draft tokens, one in each of the last rows; 0 unless the item decodes.
  std::uint32_t drafts = 0;
  // Each of the last 1 + drafts rows gives one token from its logits. The first is output
  // token `output_index` of the sequence, and the others follow it.
  bool samples = false;
  std::uint32_t output_index = 0;
  // How many candidates the last row's logits give; 0: none.
  std::uint32_t candidates = 0;
  // The prompt tokens whose log-probabilities are wanted: entry i is the token
  // after row i. It is empty if none are wanted. In the chunk that ends the prompt it is
  // one shorter than row_count.
  absl::Span<const TokenId> prompt_targets;
  // The known tokens of the sequence, prompt and output. If the item decodes, the last
  // one is the token of the first row.
  absl::Span<const TokenId> known;
  // The state owns these three. They are never null.
  const SamplingParams* sampling = nullptr;
  const StopRule* stop = nullptr;
  const LogprobSpec* logprobs = nullptr;

  // Whether what its last rows give must follow a constraint.
  bool is_constrained() const { return (samples || candidates > 0) && sampling->constraint; }
};

// Copies the open run of a fork's parent, with its position 0 (ExecutorDescription::run_tokens).
struct RunCopy {
  SequenceHandle from, to;

  bool operator==(const RunCopy&) const = default;
};

// Computes position 0 of a sequence that found it in the prefix cache: rows of later runs see its K
// and V as they were before they were encoded (kernels/kv_layout.h). The row gives nothing.
struct FirstRow {
  SequenceHandle sequence;
  TokenId token = 0;

  bool operator==(const FirstRow&) const = default;
};

// The work of one step, unpadded. Its spans and pointers into the state are valid
// until the next Apply or the step's own Complete.
struct Batch {
  Step step;
  // The caller does these first, in this order.
  std::vector<BlockCopy> copies;
  std::vector<RunCopy> run_copies;
  // The caller starts these next; they run beside the forward.
  std::vector<BackgroundCopy> background;
  // Beside the items: before these attend in a layer, that layer's K and V are there.
  std::vector<FirstRow> first_rows;
  std::vector<BatchItem> items;  // ascending handles
  std::vector<TokenId> tokens;   // [rows] token of each row, items in order
  // [items, groups] block ids; entry i covers positions i * tokens_per_block on. Leading entries of
  // window groups may be the null block: no row sees their positions.
  std::vector<absl::Span<const std::int32_t>> tables;
  std::uint32_t group_count = 0;
  std::uint32_t decode_rows = 0;  // draft tokens included
  // Sequences that would decode but have finished, ascending. They need no computing.
  std::vector<SequenceHandle> noops;

  absl::Span<const std::int32_t> table(std::size_t item, GroupIndex group) const {
    return tables[item * group_count + group.value()];
  }
};

// The outputs of the forward for one BatchItem.
struct ItemOutput {
  // One token per row that samples, in order; none if the item does not sample. If the
  // item failed, or the mask of its constraint was late for a row, these are the tokens before the
  // first row without one. If that is the first one, and the mask was late, the sequence runs its
  // last known token again.
  std::vector<SampledToken> sampled;
  // One per entry of prompt_targets, unless the item failed.
  std::vector<SampledToken> prompt;
  // At least one, and at most as many as the item asks for, unless the item failed. None if its
  // constraint allows no token, which `refused` says, or if the mask was late: the sequence then
  // does not have the position of its last row.
  std::vector<TopLogprob> candidates;
  // The item's logits were unusable (NaN). This sequence alone ends, with
  // FinishReason::kError. If only the logits of a draft token's row were unusable, the
  // sequence goes on from the tokens before that row. It ends when a row without a draft
  // token fails.
  bool failed = false;
  // Why the item failed or has no candidates, if its constraint is the reason;
  // SequenceResult::refused.
  std::string refused;
  bool is_overload = false;  // SequenceResult::is_overload
};

// One open sequence, for comparison with what a scheduler believes. Spans are
// valid until the next Apply or Complete.
struct SequenceView {
  SequenceHandle sequence;
  RequestId request;
  SequenceIndex index;
  // Prompt and output tokens known so far.
  absl::Span<const TokenId> tokens;
  std::uint32_t prompt_tokens = 0;
  // The positions that have K and V once every applied plan has run. For a step that is
  // applied and not completed, this includes its draft tokens.
  std::uint32_t length = 0;
  // [groups] block ids in table order; 0 for those that were given back.
  std::vector<absl::Span<const std::int32_t>> tables;
  // The step of its last run; 0 before the first.
  Step last_run;
  // The last known token has run with `sample`, so the sequence decodes by default.
  bool decoding = false;
  std::uint32_t draft_depth = 0;  // draft tokens that its decodes may make
  std::optional<FinishReason> finished;
};

class GroupState {
 public:
  // The limits of `description` bound everything that plans may ask for.
  // `proposer` makes the draft tokens that plans allow (null: none). It outlives the
  // state and knows no sequence yet. Only Apply calls it.
  GroupState(Epoch epoch, const ExecutorDescription& description, Proposer* proposer = nullptr);
  ~GroupState();
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  // Applies a plan's operations in order and lists the step's work.
  //   FAILED_PRECONDITION: another epoch, not the next step, `lag` plans not
  //     completed, or an earlier error. The plan has had no effect.
  //   INVALID_ARGUMENT: an operation that the state does not allow.
  //   UNIMPLEMENTED: adapters, pooled states.
  //   DATA_LOSS: the digests differ, so the two sides have drifted apart.
  // After one of the last three errors the state is undefined and refuses all plans.
  absl::StatusOr<Batch> Apply(const StepPlan& plan);

  // Takes the outputs of the oldest step not completed, one per batch item. Appends
  // tokens, decides which sequences end (stop token; max_tokens; full context) and makes
  // the result, whose timings stay zero. A sequence with nothing left to generate when
  // its prompt is done (max_tokens 0) ends with kLength and no token.
  // `copies_done`: ids of background copies that have ended, ascending.
  //   FAILED_PRECONDITION: `step` is not that step. Nothing has changed.
  //   INVALID_ARGUMENT: the outputs do not fit the items. Nothing has changed.
  //   INVALID_ARGUMENT also: a copy in `copies_done` is not outstanding.
  absl::StatusOr<StepResult> Complete(Step step, absl::Span<const ItemOutput> outputs,
                                      absl::Span<const std::uint64_t> copies_done = {});

  Epoch epoch() const { return epoch_; }
  // The last plan applied; 0 before the first.
  Step step() const { return step_; }
  std::uint64_t digest() const { return digest_.value(); }
  // Background copies started and not reported done.
  std::size_t copies_outstanding() const { return copies_.size(); }
  // Steps applied and not completed, ascending.
  std::vector<Step> Unfinished() const;
  // Open sequences in ascending order, and one of them.
  std::vector<SequenceHandle> Sequences() const;
  std::optional<SequenceView> View(SequenceHandle sequence) const;

 private:
  struct Sequence;
  struct StepWork;

  absl::Status ApplyOp(const OpenSequence& op, StepWork& work);
  absl::Status ApplyOp(const GrantBlocks& op, StepWork& work);
  absl::Status ApplyOp(const ForkSequence& op, StepWork& work);
  absl::Status ApplyOp(const DropSequence& op, StepWork& work);
  absl::Status ApplyOp(const Run& op, StepWork& work);
  absl::Status ApplyOp(const Defer& op, StepWork& work);
  absl::Status ApplyOp(const BackgroundCopy& op, StepWork& work);
  absl::Status ApplyOp(const LoadAdapter& op, StepWork& work);
  absl::Status ApplyOp(const UnloadAdapter& op, StepWork& work);
  absl::Status ApplyOp(const TrimBlocks& op, StepWork& work);
  absl::Status ApplyOp(const ReleaseBlocks& op, StepWork& work);
  absl::Status ApplyOp(const Speculate& op, StepWork& work);

  absl::Status ApplyAll(const StepPlan& plan, StepWork& work);
  absl::Status CheckFree(SequenceHandle handle) const;
  absl::StatusOr<Sequence*> FindOpen(SequenceHandle handle) const;
  absl::Status AppendBlocks(Sequence& sequence, GroupIndex group, absl::Span<const BlockId> blocks);
  void StartTables(Sequence& sequence) const;
  absl::Status ShareBlocks(const Sequence& parent, const ForkSequence& op, Sequence& child);
  absl::Status ShareRun(const Sequence& parent, const ForkSequence& op, Sequence& child,
                        StepWork& work) const;
  absl::Status Learn(Sequence& sequence, absl::Span<const TokenId> tokens, Step step);
  void RemoveBlock(Sequence& sequence, std::size_t group, std::uint32_t at);
  absl::Status CheckCovered(const Sequence& sequence, std::uint64_t end) const;
  absl::Status AddPrefill(Sequence& sequence, const Run& run, StepWork& work);
  absl::Status AddDecodes(StepWork& work);
  absl::Status AddDecode(Sequence& sequence, std::vector<TokenId> drafts, StepWork& work);
  // How many draft tokens the sequence's next decode may make: its depth, but not past
  // the end of the sequence, nor past the run that its next row is in.
  std::uint32_t DraftLimit(const Sequence& sequence) const;
  void TakeTokens(const ItemOutput& output, absl::Span<const TokenId> drafts, Sequence& sequence,
                  SequenceResult& entry) const;
  absl::Status AddRows(Sequence& sequence, std::uint32_t count, StepWork& work);
  void Insert(std::unique_ptr<Sequence> sequence);
  bool Due(const Sequence& sequence, Step step) const;
  bool AtLengthEnd(const Sequence& sequence) const;
  Batch MakeBatch(StepWork& work) const;
  absl::Status CheckOutputs(const StepWork& work, absl::Span<const ItemOutput> outputs) const;

  const Epoch epoch_;
  const ExecutorDescription limits_;
  Proposer* const proposer_;
  Step step_{0};
  bool broken_ = false;
  PlanDigest digest_;
  std::uint64_t last_copy_ = 0;
  std::set<std::uint64_t> copies_;                  // outstanding
  std::vector<std::unique_ptr<Sequence>> slots_;    // by handle; null when free
  std::vector<std::set<SequenceHandle>> decoders_;  // by micro_batch: decode by default
  std::vector<StepWork> in_flight_;                 // applied, not completed
};

}  // namespace flotilla::worker
