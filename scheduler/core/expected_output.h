// How much more KV memory running sequences will need at once.
//
// They do not all reach their length at the same time: while one grows, others
// end and give theirs back. The most that is missing at any time decides whether
// one more may start (the idea of LightLLM's past-future scheduler, Gong et al.,
// ASPLOS 2025). Pure; predictions come from outside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace flotilla {

// One running sequence, as predicted.
struct ExpectedOutput {
  std::uint64_t remaining = 0;   // tokens that it will still make
  std::uint64_t own_blocks = 0;  // that are free when it ends
};

// The most blocks beyond those held now that sequences need together, if each
// makes a token per step. `sequences` ascend by remaining; `blocks_for(tokens)`:
// that a sequence grows by, ascending.
template <class BlocksFor>
std::uint64_t PeakBlocks(const std::vector<ExpectedOutput>& sequences,
                         const BlocksFor& blocks_for) {
  std::uint64_t peak = 0, freed = 0;
  for (std::size_t ended = 0; ended < sequences.size(); ++ended) {
    // Just before this one ends, those before it have, and all others have grown
    // by as much as it.
    const std::uint64_t grown = (sequences.size() - ended) * blocks_for(sequences[ended].remaining);
    peak = std::max(peak, grown - std::min(grown, freed));
    freed += sequences[ended].own_blocks;
  }
  return peak;
}

}  // namespace flotilla
