#include "quantize/round_to_nearest.h"

#include <algorithm>

namespace flotilla::quantize {

IntegerMatrix RoundToNearest(std::span<const float> weights, int64_t rows, int64_t inputs,
                             const Grid& grid, int64_t group, ParallelItems parallel) {
  IntegerMatrix out(grid, rows, inputs, group);
  parallel(rows, [&](int64_t row) {
    const auto from =
        weights.subspan(static_cast<size_t>(row * inputs), static_cast<size_t>(inputs));
    for (int64_t begin = 0; begin < inputs; begin += group) {
      const int64_t end = std::min(begin + group, inputs);
      const GroupScale scale = FitGroup(
          from.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), grid);
      out.scales[static_cast<size_t>(row * out.groups() + begin / group)] = scale;
      for (int64_t k = begin; k < end; ++k) {
        out.codes[static_cast<size_t>(row * inputs + k)] =
            static_cast<int8_t>(CodeOf(from[static_cast<size_t>(k)], scale, grid));
      }
    }
  });
  return out;
}

}  // namespace flotilla::quantize
