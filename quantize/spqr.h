// SpQR (Dettmers et al., 2023): codes of 3 bits in tiles of 16 x 16 weights, whose scales and zeros
// are codes of 3 bits, too, and beside them the few weights that rounding would hurt most, as
// outliers. Weights are rounded as GPTQ does (gptq.h), in the order of inputs.
//
// A weight is an outlier if the errors of the others in its group of 16 become smaller by more than
// a threshold when their scale need not span it. Errors are those of GPTQ: of input i they count by
// 1 / U_ii^2. When their turn comes, weights have the errors of others, so the sensitivities of the
// plain weights would make about twice as many outliers as wanted: the weights are rounded up to
// four times, each time with the threshold that the sensitivities of the time before give.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types/weight_panel.h"
#include "quantize/gptq.h"
#include "quantize/round_to_nearest.h"

namespace flotilla::quantize {

// A matrix as SpQR has it. Plain data.
struct SpqrMatrix {
  static constexpr int kBits = 3;
  static constexpr int64_t kGroup = kFactorGroup;

  struct Outlier {
    int32_t input = 0;
    uint16_t value = 0;  // fp16; what is added to the weight of the code

    bool operator==(const Outlier&) const = default;
  };

  int64_t rows = 0;
  int64_t inputs = 0;                          // a multiple of kGroup
  std::vector<int8_t> codes;                   // [rows, inputs]
  std::vector<CodedScale> scales;              // [rows, groups]
  std::vector<std::vector<Outlier>> outliers;  // [rows], by input

  int64_t groups() const { return inputs / kGroup; }
  int64_t outlier_count() const;
  // In fp32, as weight_panel.h says.
  void ReadRow(int64_t row, std::span<float> out) const;
  // Scales, zeros and outliers included. A file has 4 bits in the place of 3.625, since its words
  // hold 16 weights and what a tile has in common twice.
  double bits_per_weight() const;
};

// `weights` are [rows, inputs]; the factor must not be by importance. About `share` of the weights,
// at most 1, become outliers. The result does not depend on threads. Scales that fp16 does not hold
// are infinite.
SpqrMatrix Spqr(std::span<const float> weights, int64_t rows, const GptqFactor& factor,
                double share, ParallelItems parallel);

}  // namespace flotilla::quantize
