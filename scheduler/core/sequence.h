// Sequence: one continuation of a request, as the scheduler knows it.
//
// It lives at an index of CoreState::sequences from admission (a beam: from its
// fork) to its end; its handle, the name that workers know, exists only while it
// is open on the worker group.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/event.h"
#include "common/types/ids.h"
#include "scheduler/core/indexed_table.h"
#include "scheduler/core/prefix_index.h"
#include "scheduler/core/speculation.h"

namespace flotilla {

enum class SequenceState : std::uint8_t {
  kWaiting,  // its request waits: new, preempted, or its worker group was lost
  kPending,  // its request is open, the sequence not yet: to be forked, or for memory
  kPrefill,  // open; known tokens left to plan
  kDecode,   // every known token planned: decodes by default
  kEnding,   // every known token planned: awaits that result, which ends it or,
             // in beam search, chooses what follows
};

// What is known of a sequence's length (positions with K and V) while results are
// outstanding. 0 <= computed <= computed_min <= scheduled_max <= allocated <= max.
struct LengthBounds {
  std::uint32_t computed = 0;  // by the results applied
  // Once all plans sent have run, unless it finishes before; less than `scheduled_max`
  // only where draft tokens may turn out wrong.
  std::uint32_t computed_min = 0;
  std::uint32_t scheduled_max = 0;  // once all plans sent have run; blocks cover it
  std::uint32_t allocated = 0;      // its blocks cover this: more since draft tokens were wrong
  std::uint32_t max = 0;            // it has surely finished when it gets there
  // Rows of the plans sent and not answered: the surest and the most.
  std::uint32_t in_flight_min = 0, in_flight_max = 0;

  // No plan is outstanding, and this is its length.
  void Settle(std::uint32_t length) {
    in_flight_min = in_flight_max = 0;
    computed = computed_min = scheduled_max = allocated = length;
  }
  // A plan is sent that adds at least and at most so many positions.
  void Send(std::uint32_t min_rows, std::uint32_t max_rows) {
    in_flight_min += min_rows;
    in_flight_max += max_rows;
    Update();
  }
  // The result of such a plan is in; so many were added.
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
  // A sequence of the same request that knows the same first `length` tokens; none:
  // it computes them, or finds them in the prefix cache.
  std::optional<TableIndex> parent;
  std::uint32_t length = 0;
};

struct Sequence {
  TableIndex request = 0;  // its owner
  SequenceIndex index;

  // The prompt, then every output token that is known.
  std::vector<TokenId> tokens;

  SequenceState state = SequenceState::kWaiting;
  LengthBounds length;
  ForkPlan fork;
  // Tokens still to be computed, as counted in CoreState::outstanding_tokens.
  std::uint64_t outstanding_tokens = 0;

  // These are valid only while it is open.
  SequenceHandle handle;
  Step opened;                       // plan that opened it
  Step last_chunk;                   // plan of its last prefill chunk
  std::uint32_t prefill_tokens = 0;  // tokens known when they were last prefilled
  std::uint32_t sent_tokens = 0;     // tokens that the workers know
  std::uint32_t sent_depth = 0;      // draft tokens that the workers make for it
  std::uint32_t micro_batch = 0;
  // It was short of a block when it could have run last, and was deferred.
  bool deferred = false;
  std::vector<std::vector<BlockId>> tables;  // [groups] entries in order
  std::uint32_t shared_blocks = 0;           // of them another's when it was opened
  // Its leading blocks that are in the prefix index, and the last one's node.
  std::uint32_t indexed_blocks = 0;
  PrefixNode indexed = kNoPrefix;
  // Its next block is there already, as a copy of the same content: no more of
  // this sequence's own are added.
  bool duplicate = false;

  // How its draft tokens fare; kept while it is not open.
  DraftAcceptance acceptance;

  // Beam search: of each output token, what the answer says of it; and what may
  // follow the last, once the result is in.
  std::vector<float> logprobs;
  std::vector<std::vector<TopLogprob>> tops;
  std::vector<TopLogprob> candidates;

  bool open() const { return state > SequenceState::kPending; }
  // No further run can change it: it has finished, though the result may still
  // be on its way.
  bool surely_finished() const { return length.computed_min == length.max; }
};

}  // namespace flotilla
