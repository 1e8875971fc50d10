// StepInputs: everything of a step that varies from step to step, as values.
//
// Whoever makes a step fills one block of inputs, and gives it away with Backend::Start. The
// operations that follow name no array of the host, so a backend may copy the block to its device
// at once and run the operations later.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/types/ids.h"
#include "common/types/plan.h"
#include "kernels/noise.h"
#include "worker/core/group_state.h"

namespace flotilla::worker {

// The token of a row. It is a type of its own, because a row may later run the token that an
// earlier row is about to sample.
struct RowToken {
  TokenId id = 0;
};

// Consecutive rows of one sequence, at consecutive positions.
struct StepSequence {
  std::int32_t handle = 0;  // SequenceHandle: names its open run (open_runs.h)
  std::int32_t row_begin = 0;
  std::int32_t row_count = 0;       // at least 1
  std::int32_t first_position = 0;  // absolute position of the first row
  // The one row is position 0, whose K and V go nowhere but into the sequence's open run
  // (Batch::first_rows). It has no block table.
  bool is_first_row = false;
};

// One change of a logit before a token is drawn. The changes of one token are made in the order of
// the list, in which they need not be neighbours.
struct LogitEdit {
  enum class Kind : std::uint8_t {
    kSet,         // the logit becomes `value`
    kAdd,         // + value
    kRepetition,  // / value if the logit is above 0, * value otherwise
  };
  TokenId token = 0;
  Kind kind = Kind::kSet;
  float value = 0;
};

// What one row of logits is for. A backend reduces the logits of this rank's shard of the
// vocabulary to a RowPartial, or it hands over the full row.
struct RowRequest {
  enum class Pick : std::uint8_t {
    kNone,
    kGreedy,  // the largest changed logit; of equal ones the lowest token
    kGumbel,  // the largest sum of changed logit * inverse_temperature and noise
    kKnown,   // `token`
  };
  std::int32_t row = 0;
  // The row goes to a RowReceiver (Backend::Head says of which rank); the fields below mean
  // nothing.
  bool full_row = false;
  std::int32_t top = 0;  // how many of the best tokens are listed, by unchanged logits; <= 0: none
  Pick pick = Pick::kNone;
  TokenId token = 0;              // kKnown
  float inverse_temperature = 1;  // kGumbel
  kernels::NoiseKey noise;        // kGumbel
  // The changes, which kGreedy and kGumbel see: a range of StepInputs::edits.
  std::int64_t edits_begin = 0, edits_end = 0;
};

struct StepInputs {
  // A backend does these first, in this order: it makes contents of granted blocks and of the open
  // runs of new sequences undefined (only tests ask for this), copies blocks and open runs, and
  // starts the background copies, which run beside the step.
  std::vector<BlockId> granted;
  std::vector<SequenceHandle> opened;
  std::vector<BlockCopy> copies;
  std::vector<RunCopy> run_copies;
  std::vector<BackgroundCopy> background;

  std::vector<RowToken> tokens;         // [rows]
  std::vector<std::int32_t> positions;  // [rows] absolute
  std::vector<StepSequence> sequences;  // in the order of their rows
  // Block tables. Entry i of a sequence's table is the block of positions n i to n i + n - 1, if
  // blocks have n positions (KvShape::block_tokens).
  std::uint32_t group_count = 1;
  std::vector<std::int64_t> table_begins;  // [sequences, groups] index into block_ids
  std::vector<std::int32_t> block_ids;

  // On the last stage: the rows whose logits are wanted, ascending. On others there are none.
  std::vector<RowRequest> requests;
  std::vector<LogitEdit> edits;
  // Full rows go to all ranks of the stage, and not to one.
  bool full_rows_to_all = false;

  int rows() const { return static_cast<int>(tokens.size()); }
  const std::int32_t* table(std::size_t sequence, GroupIndex group) const {
    return block_ids.data() + table_begins[sequence * group_count + group.value()];
  }
  absl::Span<const LogitEdit> edits_of(const RowRequest& request) const {
    return absl::MakeConstSpan(edits).subspan(request.edits_begin,
                                              request.edits_end - request.edits_begin);
  }
};

// Adds the rows of one sequence. `tables` has its block ids, one list per KV group.
void AddSequence(SequenceHandle handle, std::int32_t first_position,
                 absl::Span<const TokenId> tokens,
                 absl::Span<const absl::Span<const std::int32_t>> tables, StepInputs& inputs);

// The inputs of a batch, without requests. They keep no view of the batch.
StepInputs MakeStepInputs(const Batch& batch);

}  // namespace flotilla::worker
