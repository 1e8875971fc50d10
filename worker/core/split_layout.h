// Where the splits of a row-parallel product lie in the rows of its activations. Pure functions.
//
// Kernels multiply blocks of 32 inputs, which begin at the multiples of 32 in the rows of the file,
// whatever its format. A split that does not begin or end there is widened to whole blocks, and
// the activations of what it does not own are zero. So each split begins at a multiple of 32 in a
// row of activations, and no weight is cut.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace flotilla::worker {

inline constexpr std::int32_t kSplitBlock = 32;

struct SplitPlace {
  std::int32_t begin = 0;  // the split's own inputs, as the file counts them: [begin, end)
  std::int32_t end = 0;
  std::int32_t at = 0;     // where its blocks begin in a row of activations
  std::int32_t width = 0;  // of its blocks

  std::int32_t first() const { return begin / kSplitBlock * kSplitBlock; }  // input of its blocks
  // Where its own inputs begin in a row of activations.
  std::int32_t own_at() const { return at + begin - first(); }
};

// The splits that end at `ends`, one after the other.
inline std::vector<SplitPlace> PlaceSplits(absl::Span<const std::int32_t> ends) {
  std::vector<SplitPlace> places;
  std::int32_t begin = 0, at = 0;
  for (const std::int32_t end : ends) {
    SplitPlace& place = places.emplace_back(SplitPlace{.begin = begin, .end = end, .at = at});
    place.width = (end - place.first() + kSplitBlock - 1) / kSplitBlock * kSplitBlock;
    at += place.width;
    begin = end;
  }
  return places;
}

}  // namespace flotilla::worker
