// StepPlan and StepResult: what travels between a scheduler and the ranks of a
// worker group.
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
  // Everything known: the prompt, then output tokens made earlier (resumption
  // after preemption, replay). The next sampled token is output number
  // tokens.size() - prompt_tokens.
  std::vector<TokenId> tokens;
  std::uint32_t prompt_tokens = 0;
  // Positions [0, cached_tokens) are in the blocks that the following grants name
  // (prefix hit), or will be once this plan's rows are written: ranks write the K
  // and V of all rows of a plan before they read any. The sequence starts at that
  // length.
  std::uint32_t cached_tokens = 0;
  SamplingParams sampling;
  StopRule stop;
  LogprobSpec logprobs;
  // The sequence decodes in plans whose step % lag equals micro_batch (see Run).
  std::uint32_t micro_batch = 0;
  // A beam never decodes by default: who made the plan chooses its
  // tokens from candidates.
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

// Creates `child` from the first `length` positions of `parent`, which earlier
// plans have written: it knows the parent's tokens up to there, then `tokens`,
// none of which has run. Parameters are the parent's.
//
// Its block tables begin with the blocks of the parent that those positions
// fill: they are shared. A block that they fill in part, and the record of a
// state group, is copied: the copy's target is the child's own next block. So
// nobody ever writes to a block that two tables name.
struct ForkSequence {
  SequenceHandle parent, child;
  SequenceIndex index;
  std::uint32_t length = 0;
  std::vector<TokenId> tokens;  // at least one; the prompt is complete with them
  // One per KV group with such a block, in order of the groups; immediate.
  std::vector<BlockCopy> copies;
  std::uint32_t micro_batch = 0;

  bool operator==(const ForkSequence&) const = default;
};

// Takes the last `count` blocks of one block table back, which no position that
// the sequence has needs: those were granted for draft tokens that were wrong.
struct TrimBlocks {
  SequenceHandle sequence;
  GroupIndex group;
  std::uint32_t count = 0;  // at least 1

  bool operator==(const TrimBlocks&) const = default;
};

// From this plan on a decode of the sequence may draft up to `depth` tokens ahead.
// In force until another says otherwise; a new sequence has 0. A decode then runs
// the token sampled last and the draft tokens that follow it, each row is sampled as
// if nothing had been drafted, and tokens count as long as the row they came
// from held the right one: so it brings between one and 1 + depth tokens, which
// are those that it would have brought anyway. Workers find the draft tokens, and may
// find fewer. Not for beams.
struct Speculate {
  SequenceHandle sequence;
  std::uint32_t depth = 0;  // at most ExecutorDescription::max_draft_tokens

  bool operator==(const Speculate&) const = default;
};

// Ends a sequence; its handle and blocks are free for any later plan.
struct DropSequence {
  SequenceHandle sequence;

  bool operator==(const DropSequence&) const = default;
};

// Runs a sequence in this plan: its next `count` known tokens (a prefill chunk).
// The chunk that reaches the last known token samples if `sample` is set; from
// then on the sequence decodes by default: one token in every plan p with
// p % lag == micro_batch and p >= (step of its last run) + lag, until it finishes.
struct Run {
  SequenceHandle sequence;
  std::uint32_t count = 0;  // at least 1
  bool sample = false;
  // Return log-probabilities of the known token that follows each row.
  bool prompt_logprobs = false;
  // Beams: tokens that become known first (a beam's choice), and how
  // many best candidates for the next one to return instead of a sample.
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

// Copies blocks between the pool and a tier while forwards go on. Starts with its
// plan, after what earlier plans wrote, and is reported done by a later result;
// until then nobody writes the blocks that leave or uses those that come.
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

using PlanOp = std::variant<OpenSequence, GrantBlocks, ForkSequence, DropSequence, Run, Defer,
                            BackgroundCopy, LoadAdapter, UnloadAdapter, TrimBlocks, Speculate>;

struct StepPlan {
  Epoch epoch;
  Step step;  // previous + 1, else refused
  // PlanDigest after all operations; a rank whose own differs ends the epoch.
  std::uint64_t digest = 0;
  std::vector<PlanOp> ops;
  // The scheduler's estimate of the step's duration, for deadlines of the step.
  std::int64_t predicted_ns = 0;

  bool operator==(const StepPlan&) const = default;
};

struct SampledToken {
  TokenId token = 0;
  float logprob = 0;
  std::vector<TopLogprob> top;

  bool operator==(const SampledToken&) const = default;
};

// What one sequence did in one step.
struct SequenceResult {
  SequenceHandle sequence;
  // Positions whose K and V are written after the step.
  std::uint32_t length = 0;
  // Output index of tokens[0].
  std::uint32_t first_output = 0;
  std::vector<SampledToken> tokens;  // empty, one, or several (speculation)
  // Tokens that were drafted and run. All tokens but the first are among them.
  std::uint32_t drafted = 0;
  // Log-probabilities of prompt tokens [prompt_first, prompt_first + size).
  std::uint32_t prompt_first = 0;
  std::vector<SampledToken> prompt;
  // What Run::candidates asked for: the most likely next tokens, best first, ties
  // by the lower id. Fewer only where the vocabulary has no more.
  std::vector<TopLogprob> candidates;
  // Set in the result in which the sequence finished, and in every later one in
  // which a decode of it was a no-op.
  std::optional<FinishReason> finished;
  // True: the sequence had finished before this step and nothing was computed.
  bool noop = false;

  bool operator==(const SequenceResult&) const = default;
};

struct StepTimings {
  std::int64_t start_ns = 0;      // executor's clock, when the forward began
  std::int64_t compute_ns = 0;    // draft tokens, forward and sampling
  std::uint32_t rows = 0;         // tokens in the flat batch
  std::uint32_t decode_rows = 0;  // of them decodes, their draft tokens included

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
