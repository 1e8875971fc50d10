// Branch: everything the scheduler knows about one continuation of a request.
//
// While a request may have one branch only, a Branch also is the request. It
// lives in a slot of BranchTable from admission to its end; its handle (the
// name that workers know) exists only while it is open on the worker group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/types/ids.h"
#include "common/types/request.h"
#include "scheduler/core/prefix_index.h"

namespace flotilla {

// Index of a branch in BranchTable; reused after the branch has ended.
using Slot = std::uint32_t;

enum class BranchState : std::uint8_t {
  kWaiting,  // not open: new, preempted, or its worker group was lost
  kPrefill,  // open; known tokens left to plan
  kDecode,   // every known token planned: decodes by default
  kEnding,   // every known token planned and none wanted: awaits that result
};

// What is known of a branch's length (positions with K and V) while results are
// outstanding. 0 <= lower <= upper <= max.
struct LengthBounds {
  std::uint32_t lower = 0;  // by the results applied
  std::uint32_t upper = 0;  // once all plans sent have run; blocks cover it
  std::uint32_t max = 0;    // it has surely finished when it gets there
};

struct Branch {
  RequestId request;
  Attempt attempt;
  BranchIndex index;

  // The prompt, then every output token delivered.
  std::vector<TokenId> tokens;
  std::uint32_t prompt_tokens = 0;
  // Tenant and salt: only branches of one scope share cached blocks.
  std::string cache_scope;
  SamplingParams sampling;
  StopRule stop;
  LogprobSpec logprobs;
  std::optional<std::int64_t> deadline_ns;

  std::int32_t priority = 0;
  std::uint64_t arrival = 0;  // order of admission; unique

  BranchState state = BranchState::kWaiting;
  std::uint32_t preemptions = 0;
  std::uint32_t decode_preemptions = 0;
  std::uint32_t cached_tokens = 0;  // prompt tokens found when first opened
  // The next prompt token whose log-probability was not yet delivered.
  std::uint32_t prompt_logprobs_next = 1;

  LengthBounds length;

  // Only while open.
  BranchHandle handle;
  Step opened;                       // plan that opened it
  Step last_chunk;                   // plan of its last prefill chunk
  std::uint32_t prefill_tokens = 0;  // tokens known when it was opened
  std::uint32_t cohort = 0;
  // It lacked a block when it could have run last, and sat that plan out.
  bool sat_out = false;
  std::vector<std::vector<BlockId>> tables;  // [groups] entries in order
  // Its leading blocks that are in the prefix index, and the last one's node.
  std::uint32_t indexed_blocks = 0;
  PrefixNode indexed = kNoPrefix;
  // Its next block is there already, as a copy of the same content: no more of
  // this branch's own are added.
  bool duplicate = false;

  std::uint32_t output_tokens() const {
    return static_cast<std::uint32_t>(tokens.size()) - prompt_tokens;
  }
  // The prefix cache has no prompt log-probabilities: a branch that wants more of
  // them computes its prompt itself.
  bool wants_prompt_rows() const {
    return logprobs.prompt_top != LogprobSpec::kOff && prompt_logprobs_next < prompt_tokens;
  }
  bool open() const { return state != BranchState::kWaiting; }
  // No further run can change it: it has finished, though the result may still
  // be on its way.
  bool surely_finished() const { return length.upper == length.max; }
  // Tokens still to be computed: known ones not run, and outputs allowed.
  std::uint64_t owed_tokens() const {
    return tokens.size() - length.lower + (stop.max_tokens - output_tokens());
  }
};

}  // namespace flotilla
