// Preemption: the record of one request that gave its KV blocks back so that another
// could go on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/types/ids.h"

namespace flotilla::scheduler {

// Why a victim's KV is read back from a tier or recomputed.
enum class PreemptionReason : std::uint8_t {
  kSwapped,       // swapped: to write and read a block costs less than to compute it
  kRecomputed,    // recomputed: to write and read a block costs more, in every tier
  kNoTier,        // recomputed: there are no tiers
  kNoWholeBlock,  // recomputed: the victim has no full block that no other sequence uses
};
inline constexpr std::size_t kPreemptionReasons = 4;

// "swap" or "recompute".
constexpr const char* ModeName(PreemptionReason reason) {
  return reason == PreemptionReason::kSwapped ? "swap" : "recompute";
}
// The name that metrics use.
constexpr const char* ReasonName(PreemptionReason reason) {
  constexpr const char* kNames[kPreemptionReasons] = {"cheaper", "cheaper", "no_tier",
                                                      "no_whole_block"};
  return kNames[static_cast<std::size_t>(reason)];
}

struct Preemption {
  RequestId victim;
  RequestId winner;  // the first in order that was short of blocks; may be the victim itself
  PreemptionReason reason = PreemptionReason::kNoTier;
  bool decoding = false;     // the victim had sent tokens in this run
  std::uint32_t blocks = 0;  // blocks that are free now, or will be once they are copied
  // Blocks that are in a tier or on the way there. They are the first blocks, as many as
  // the tier has room for.
  std::uint32_t swapped_blocks = 0;
  // The predicted time to write one block to the fastest tier and read it back (0: there
  // is no tier), and the predicted time to compute it.
  std::int64_t swap_ns = 0;
  std::int64_t recompute_ns = 0;
  // The predicted time for all blocks: to copy those that are swapped, also where they were
  // written before, and to compute the others. The real time is less if some are still cached
  // when the victim resumes.
  std::int64_t cost_ns = 0;
};

// Totals by reason.
struct PreemptionTotals {
  std::uint64_t count = 0;
  std::uint64_t decoding = 0;  // those in which the victim had sent tokens
  std::uint64_t blocks = 0;
  std::int64_t cost_ns = 0;
};
using PreemptionCounters = std::array<PreemptionTotals, kPreemptionReasons>;

}  // namespace flotilla::scheduler
