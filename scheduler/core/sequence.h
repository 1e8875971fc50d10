// Sequence: one continuation of a request, as the scheduler knows it.
//
// A sequence lives at an index of CoreState::sequences from the time that its request is
// accepted (a beam: that it is chosen) to its end. Its handle, the name that workers know,
// exists only while it is open on the worker group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/types/event.h"
#include "common/types/ids.h"
#include "scheduler/core/forecast/output_lengths.h"
#include "scheduler/core/indexed_table.h"
#include "scheduler/core/prefix_index.h"
#include "scheduler/core/speculation.h"

namespace flotilla::scheduler {

enum class SequenceState : std::uint8_t {
  kWaiting,  // its request waits: new, preempted, or its worker group was lost
  kPending,  // its request is open, the sequence not yet: it waits for its fork or for blocks
  kPrefill,  // open; some known tokens are in no plan yet
  kDecode,   // every known token is in a plan; it decodes by default
  kEnding,   // every known token is in a plan; the result of the last one ends the
             // sequence or, in beam search, chooses what follows
};

// Bounds of a sequence's length (its positions with K and V) while results are
// outstanding. 0 <= computed <= computed_min <= scheduled_max <= allocated <= max.
struct LengthBounds {
  std::uint32_t computed = 0;  // the length according to the results applied
  // The least length once all plans sent have run, unless the sequence finishes before.
  // Less than `scheduled_max` only where draft tokens may turn out wrong, or masks be late.
  std::uint32_t computed_min = 0;
  std::uint32_t scheduled_max = 0;  // the most once all plans sent have run; blocks cover it
  std::uint32_t allocated = 0;      // its blocks cover this; more after wrong draft tokens
  std::uint32_t max = 0;            // a sequence of this length has surely finished
  // The fewest and the most rows of the plans that are sent and not answered.
  std::uint32_t in_flight_min = 0, in_flight_max = 0;

  // Sets the exact length. No plan is outstanding.
  void Settle(std::uint32_t length) {
    in_flight_min = in_flight_max = 0;
    computed = computed_min = scheduled_max = allocated = length;
  }
  // Records a plan that adds between `min_rows` and `max_rows` positions.
  void Send(std::uint32_t min_rows, std::uint32_t max_rows) {
    in_flight_min += min_rows;
    in_flight_max += max_rows;
    Update();
  }
  // Records the result of such a plan, which added `rows` positions.
  void Answer(std::uint32_t min_rows, std::uint32_t max_rows, std::uint32_t rows) {
    in_flight_min -= min_rows;
    in_flight_max -= max_rows;
    computed += rows;
    Update();
  }

 private:
  void Update() {
    computed_min = computed + in_flight_min < max ? computed + in_flight_min : max;
    scheduled_max = computed + in_flight_max < max ? computed + in_flight_max : max;
    allocated = allocated < scheduled_max ? scheduled_max : allocated;
  }
};

// How a sequence that is not open will get the K and V of its first positions.
struct ForkPlan {
  // A sequence of the same request that knows the same first `length` tokens. If there is
  // none, the sequence computes them or finds them in the prefix cache.
  std::optional<TableIndex> parent;
  std::uint32_t length = 0;
};

// The positions that a sequence ran in the steps in which a worker group died. They run again in
// isolated steps, in the same chunks, so that another death shows whose rows they were.
struct FatalRows {
  std::uint32_t begin = 0, end = 0;  // none if both are equal
  // Where the rows of each step ended, ascending. The last one is `end`.
  std::vector<std::uint32_t> cuts;

  bool any() const { return begin < end; }
  bool Overlaps(const FatalRows& other) const { return begin < other.end && other.begin < end; }
};

struct Sequence {
  TableIndex request = 0;  // its owner
  TableIndex self = 0;     // where it lives in CoreState::sequences
  SequenceIndex index;

  // The prompt, then every output token that is known.
  std::vector<TokenId> tokens;

  SequenceState state = SequenceState::kWaiting;
  LengthBounds length;
  ForkPlan fork;
  // Tokens still to be computed, as counted in CoreState::outstanding_tokens.
  std::uint64_t outstanding_tokens = 0;
  // The output tokens that it is expected to have in all. Good until it has `forecast_until`.
  OutputForecast forecast;
  std::uint32_t forecast_until = 0;
  std::uint32_t reported = 0;  // OutputLengths::Report

  // It has a constraint, whose mask may be late for a row. That row then gives no token, is no
  // position of the sequence, and runs again.
  bool constrained = false;

  // The following fields are valid only while the sequence is open.
  SequenceHandle handle;
  Step opened;                       // the plan that opened it
  Step last_chunk;                   // the plan of its last prefill chunk
  std::uint32_t prefill_tokens = 0;  // tokens known when they were last prefilled
  std::uint32_t sent_tokens = 0;     // tokens that the workers know
  std::uint32_t sent_depth = 0;      // draft tokens that the workers make for it
  std::uint32_t micro_batch = 0;
  // The last time that it could have run, it was short of a block and was deferred.
  bool deferred = false;
  // How many of its rows gave no token one after the other, since their masks were late, and how
  // many more plans it is left out of for that.
  std::uint32_t late_in_a_row = 0, backoff = 0;

  // Kept while the sequence is not open.
  FatalRows fatal;

  // How often its draft tokens are right. Kept while the sequence is not open.
  DraftAcceptance acceptance;

  // For beam search: the output tokens, and the candidates for the next one once the result is
  // in.
  std::vector<SampledToken> outputs;
  std::vector<TopLogprob> candidates;
  // Why the result has no candidates: the constraint allows no token. OK: that is not so.
  absl::Status dead_end;

  bool open() const { return state > SequenceState::kPending; }
  // Whether the results of its fatal rows are in, or it has none. If it will be forked behind
  // them, they are the parent's.
  bool past_fatal() const {
    return !fatal.any() || (open() ? length.computed : fork.length) >= fatal.end;
  }
  // The position of its next row, as far as it is known.
  std::uint32_t next_row() const { return open() ? length.scheduled_max : fork.length; }
  // Whether it runs in isolated steps only, because its next row is fatal or the results of
  // its fatal rows are outstanding.
  bool held() const { return !past_fatal() && next_row() >= fatal.begin; }
  // The position at which the rows of a step that begin at `from` must end: in a shared step
  // before its fatal rows, in an isolated one where the fatal step ended.
  std::uint32_t StepEnd(std::uint32_t from) const {
    if (past_fatal() || from >= fatal.end) return length.max;
    if (from < fatal.begin) return fatal.begin;
    return *std::upper_bound(fatal.cuts.begin(), fatal.cuts.end() - 1, from);
  }
  // Records the result of a row that samples. A mask that was late twice is probably late for a
  // while, and its rows run for nothing: ever more plans are left out before the next one.
  void NoteMask(bool is_late) {
    constexpr std::uint32_t kMostBackoff = 6;
    late_in_a_row = is_late ? late_in_a_row + 1 : 0;
    backoff = std::min(late_in_a_row > 0 ? late_in_a_row - 1 : 0, kMostBackoff);
  }
  // Whether its next row is likely to run for nothing. While the result of the last one is
  // outstanding, nothing new is known.
  bool backs_off() const {
    return open() && late_in_a_row > 1 && (backoff > 0 || length.in_flight_max > 0);
  }
  // The sequence has finished and no further run can change it. Its last result may still
  // be on the way.
  bool surely_finished() const { return length.computed_min == length.max; }
};

}  // namespace flotilla::scheduler
