// IntegerMatrix: a quantised matrix, as codes and the scales of its groups (grid.h). Plain data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "quantize/grid.h"

namespace flotilla::quantize {

struct IntegerMatrix {
  IntegerMatrix() = default;
  // Without codes and scales.
  IntegerMatrix(const Grid& matrix_grid, int64_t row_count, int64_t input_count, int64_t group_size)
      : grid(matrix_grid),
        rows(row_count),
        inputs(input_count),
        group(group_size),
        codes(static_cast<size_t>(rows * inputs)),
        scales(static_cast<size_t>(rows * groups())) {}

  Grid grid;
  int64_t rows = 0;
  int64_t inputs = 0;
  int64_t group = 0;               // inputs that follow each other; the last group may be shorter
  std::vector<int8_t> codes;       // [rows, inputs]
  std::vector<GroupScale> scales;  // [rows, groups]

  int64_t groups() const { return (inputs + group - 1) / group; }
  const GroupScale& scale(int64_t row, int64_t input) const {
    return scales[static_cast<size_t>(row * groups() + input / group)];
  }
  float At(int64_t row, int64_t input) const {
    return WeightOf(codes[static_cast<size_t>(row * inputs + input)], scale(row, input));
  }
  // Scales and zeros included.
  double bits_per_weight() const {
    const double per_group = 16 + (grid.symmetric ? 0 : grid.bits);
    return grid.bits + per_group * static_cast<double>(groups()) / static_cast<double>(inputs);
  }
};

}  // namespace flotilla::quantize
