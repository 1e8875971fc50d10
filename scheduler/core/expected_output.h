// Predicts how much more KV memory the running sequences will need at once.
//
// Sequences do not all reach their full length at the same time: while one grows, others
// end and give their blocks back. The greatest need at any time decides whether one more
// request may start (the idea of LightLLM's past-future scheduler, Gong et al., ASPLOS
// 2025). The code is pure; its callers predict the outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace flotilla::scheduler {

// One running sequence, as predicted.
struct ExpectedOutput {
  std::uint64_t remaining = 0;   // tokens that it will still make
  std::uint64_t own_blocks = 0;  // blocks that become free when it ends
  // The blocks by which it can still grow in window groups, which keep no more than a window.
  std::uint64_t window_room = 0;
};

// The most blocks that sequences will need together beyond those that they hold now, if
// each makes a token per step. `sequences` ascend by `remaining`. `growth(tokens)` has
// the numbers of blocks that a sequence grows by, `blocks` and `in_windows`, the latter at most by
// its room. They must not decrease with `tokens`.
template <class Growth>
std::uint64_t PeakBlocks(const std::vector<ExpectedOutput>& sequences, const Growth& growth) {
  std::uint64_t peak = 0, freed = 0, room = 0;  // room: of those that have not ended
  for (const ExpectedOutput& sequence : sequences) room += sequence.window_room;
  for (std::size_t ended = 0; ended < sequences.size(); ++ended) {
    // Just before this sequence ends, those before it have ended, and all later ones have
    // grown by as much as it has.
    const std::uint64_t growing = sequences.size() - ended;
    const auto each = growth(sequences[ended].remaining);
    const std::uint64_t grown = growing * each.blocks + std::min(growing * each.in_windows, room);
    peak = std::max(peak, grown - std::min(grown, freed));
    freed += sequences[ended].own_blocks;
    room -= sequences[ended].window_room;
  }
  return peak;
}

}  // namespace flotilla::scheduler
