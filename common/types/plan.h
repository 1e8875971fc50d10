// StepPlan and StepResult: the messages between a scheduler and the ranks of a worker
// group.
//
// A plan is one ordered list of typed operations. It is incremental: ranks keep
// each sequence's tokens, length and block tables (worker/core), and a plan says
// only what changed. Sequences whose prompt is complete decode by default; a
// plan mentions such a sequence only to grant it a block, to defer it, or
// to drop it. Positions of decodes are never named: a decode continues from the
// token sampled last, which the scheduler may not have seen yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/types/event.h"
#include "common/types/ids.h"
#include "common/types/request.h"

namespace flotilla {

// Creates a sequence with empty block tables and length 0.
struct OpenSequence {
  SequenceHandle sequence;
  RequestId request;
  SequenceIndex index;
  // All known tokens: the prompt, then the output tokens made earlier (before a preemption
  // or a replay). The next sampled token is output number tokens.size() - prompt_tokens.
  std::vector<TokenId> tokens;
  std::uint32_t prompt_tokens = 0;
  // On a prefix hit, positions [0, cached_tokens) are in the blocks that the following
  // grants name, or will be once this plan's rows are written: ranks write the K and V of
  // all rows of a plan before they read any. The sequence starts at that length. The grants of a
  // window group begin with the first block that the sequence needs
  // (KvGroup::UnneededBlocks).
  std::uint32_t cached_tokens = 0;
  SamplingParams sampling;
  StopRule stop;
  LogprobSpec logprobs;
  // The sequence decodes in plans whose step % lag equals micro_batch (see Run).
  std::uint32_t micro_batch = 0;
  // A beam never decodes by default: the scheduler chooses its tokens from candidates.
  bool is_beam = false;

  bool operator==(const OpenSequence&) const = default;
};

// Appends blocks to one block table of a sequence.
struct GrantBlocks {
  SequenceHandle sequence;
  GroupIndex group;
  std::vector<BlockId> blocks;

  bool operator==(const GrantBlocks&) const = default;
};

// Copies the contents of one block, in every layer, before the plan's forward.
struct BlockCopy {
  BlockId from, to;

  bool operator==(const BlockCopy&) const = default;
};

// Creates `child` from the first `length` positions of `parent`, which earlier plans have
// written. The child knows the parent's tokens up to there, then `tokens`, none of which
// has run. It has the parent's parameters.
//
// The child's block tables begin with the parent's blocks that those positions fill
// completely; these are shared, except for those that the child does not need
// (KvGroup::UnneededBlocks), which the parent may have given back. A block that they fill in
// part, and the record of a state group, is copied to the child's own next block. So no sequence
// ever writes to a block that two tables name.
struct ForkSequence {
  SequenceHandle parent, child;
  SequenceIndex index;
  std::uint32_t length = 0;
  std::vector<TokenId> tokens;  // at least one; they complete the prompt
  // One copy per KV group with a block that is filled in part, in the order of the groups.
  // The copies are made at once.
  std::vector<BlockCopy> copies;
  std::uint32_t micro_batch = 0;

  bool operator==(const ForkSequence&) const = default;
};

// Takes back the last `count` blocks of one block table. They were granted for draft
// tokens that were wrong, and no position of the sequence needs them.
struct TrimBlocks {
  SequenceHandle sequence;
  GroupIndex group;
  std::uint32_t count = 0;  // at least 1

  bool operator==(const TrimBlocks&) const = default;
};

// Gives back the first `count` blocks of one block table of a window group, of those that it still
// has. No later row of the sequence sees a position of them. The entries of the table stay, and
// name the null block.
struct ReleaseBlocks {
  SequenceHandle sequence;
  GroupIndex group;
  std::uint32_t count = 0;  // at least 1

  bool operator==(const ReleaseBlocks&) const = default;
};

// From this plan on, a decode of the sequence may draft up to `depth` tokens ahead. The
// depth is in force until another Speculate changes it; a new sequence has 0. A decode
// then runs the token sampled last and the draft tokens that follow it. Each row is
// sampled as if nothing had been drafted, and its token counts if all draft tokens up to
// that row were right. So a decode gives between one and 1 + depth tokens, and they are
// the same tokens that it would give without drafting. Workers find the draft tokens, and
// may find fewer. Not for beams.
struct Speculate {
  SequenceHandle sequence;
  std::uint32_t depth = 0;  // at most ExecutorDescription::max_draft_tokens

  bool operator==(const Speculate&) const = default;
};

// Ends a sequence. Any later plan may reuse its handle and its blocks.
struct DropSequence {
  SequenceHandle sequence;

  bool operator==(const DropSequence&) const = default;
};

// Runs the next `count` known tokens of a sequence in this plan (a prefill chunk). The
// chunk that reaches the last known token samples if `sample` is set. From then on the
// sequence decodes by default, until it finishes: one token in every plan p with
// p % lag == micro_batch and p >= (step of its last run) + lag.
struct Run {
  SequenceHandle sequence;
  std::uint32_t count = 0;  // at least 1
  bool sample = false;
  // Return log-probabilities of the known token that follows each row.
  bool prompt_logprobs = false;
  // For beams: the tokens that become known before the run (a beam's choice), and how many
  // of the best candidates for the next token to return instead of a sample.
  std::vector<TokenId> append;
  std::uint32_t candidates = 0;
  // Return pooled hidden states (embeddings).
  bool pooled = false;

  bool operator==(const Run&) const = default;
};

// A sequence that would decode by default does not run in this plan.
struct Defer {
  SequenceHandle sequence;

  bool operator==(const Defer&) const = default;
};

// Copies blocks between the pool and a tier while forwards go on. The copy starts with its
// plan, after the writes of earlier plans, and a later result reports that it is done.
// Until then no plan writes the blocks that are copied out or uses those that are copied
// in.
struct BackgroundCopy {
  enum class Kind : std::uint8_t { kOut, kIn };
  struct Move {
    BlockId block;           // of the pool
    std::uint32_t slot = 0;  // of the tier

    bool operator==(const Move&) const = default;
  };
  std::uint64_t id = 0;  // ascending
  Kind kind = Kind::kOut;
  std::uint32_t tier = 0;
  std::vector<Move> moves;

  bool operator==(const BackgroundCopy&) const = default;
};

struct LoadAdapter {
  std::string adapter;
  bool operator==(const LoadAdapter&) const = default;
};
struct UnloadAdapter {
  std::string adapter;
  bool operator==(const UnloadAdapter&) const = default;
};

using PlanOp =
    std::variant<OpenSequence, GrantBlocks, ForkSequence, DropSequence, Run, Defer, BackgroundCopy,
                 LoadAdapter, UnloadAdapter, TrimBlocks, Speculate, ReleaseBlocks>;

struct StepPlan {
  Epoch epoch;
  Step step;  // previous + 1; any other is refused
  // The PlanDigest after all operations. A rank whose own digest differs ends the epoch.
  std::uint64_t digest = 0;
  std::vector<PlanOp> ops;
  // The scheduler's estimate of the step's duration, for deadlines of the step.
  std::int64_t predicted_ns = 0;

  bool operator==(const StepPlan&) const = default;
};

// What one sequence did in one step.
struct SequenceResult {
  SequenceHandle sequence;
  // The positions whose K and V are written after the step.
  std::uint32_t length = 0;
  // Output index of tokens[0].
  std::uint32_t first_output = 0;
  // Empty, one, or several (speculation). Empty also if the mask of the sequence's constraint was
  // late for the row that was to give the first one. `length` then ends before that row, which the
  // sequence runs again by default.
  std::vector<SampledToken> tokens;
  // The number of tokens that were drafted and run. All `tokens` but the last were among
  // them.
  std::uint32_t drafted = 0;
  // Log-probabilities of prompt tokens [prompt_first, prompt_first + size).
  std::uint32_t prompt_first = 0;
  std::vector<SampledToken> prompt;
  // The answer to Run::candidates: the most likely next tokens, best first, and the lower
  // id first among equal ones. There are fewer only if the vocabulary has no more, or the
  // sequence's constraint allows no more; and none if it allows none, which `refused` says, or if
  // its mask was late. `length` then ends before the row, and a later plan may run it again.
  std::vector<TopLogprob> candidates;
  // Set in the result of the step in which the sequence finished, and in every later
  // result in which its decode was a no-op.
  std::optional<FinishReason> finished;
  // Why the sequence's constraint ended it, with FinishReason::kError, or leaves no candidates;
  // otherwise empty. At most kMaxReason bytes.
  static constexpr std::size_t kMaxReason = 160;
  std::string refused;
  // With `refused`: the worker has no room for the constraint now. A later try may succeed.
  bool is_overload = false;
  // True: the sequence had finished before this step and nothing was computed.
  bool noop = false;

  bool operator==(const SequenceResult&) const = default;
};

struct StepTimings {
  std::int64_t start_ns = 0;      // executor's clock, when the forward began
  std::int64_t compute_ns = 0;    // draft tokens, forward and sampling
  std::uint32_t rows = 0;         // tokens in the flat batch
  std::uint32_t decode_rows = 0;  // rows of decodes, their draft tokens included

  bool operator==(const StepTimings&) const = default;
};

struct StepResult {
  Epoch epoch;
  Step step;
  std::vector<SequenceResult> sequences;   // ascending handles
  std::vector<std::uint64_t> copies_done;  // ids of finished background copies
  StepTimings timings;

  bool operator==(const StepResult&) const = default;
};

}  // namespace flotilla
