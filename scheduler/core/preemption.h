// Preemption: one request that gave its KV blocks back so that another could go on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/types/ids.h"

namespace flotilla {

// Why a victim's tokens are read back from a tier, or computed again.
enum class PreemptionReason : std::uint8_t {
  kSwapped,       // to write and read a block costs less than to compute it
  kRecomputed,    // it costs more, in every tier
  kNoTier,        // computed: there are no tiers
  kNoWholeBlock,  // computed: it has no full block that nobody else uses
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
  std::uint32_t blocks = 0;  // that came free, or will when they are copied
  // Of them in a tier, or on the way there: from the first on, as many as it has room
  // for.
  std::uint32_t swapped_blocks = 0;
  // Predicted for one block: to write it to the fastest tier and read it back (0: no
  // tier), and to compute it.
  std::int64_t swap_ns = 0;
  std::int64_t recompute_ns = 0;
  // Predicted for all blocks: copies of those swapped, computing of the others. Less
  // if some are still cached when the victim comes back.
  std::int64_t cost_ns = 0;
};

// Totals by reason.
struct PreemptionTotals {
  std::uint64_t count = 0;
  std::uint64_t decoding = 0;  // of them
  std::uint64_t blocks = 0;
  std::int64_t cost_ns = 0;
};
using PreemptionCounters = std::array<PreemptionTotals, kPreemptionReasons>;

}  // namespace flotilla
