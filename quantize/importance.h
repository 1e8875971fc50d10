// Importance: what calibration has seen of the inputs of a matrix. It tells how much an error of a
// weight changes the outputs.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "kernels/packed_matrix.h"
#include "quantize/round_to_nearest.h"

namespace flotilla::quantize {

class Importance {
 public:
  // `inputs` is at least 1. `ops` outlive it.
  Importance(int64_t inputs, const kernels::Ops& ops);

  int64_t inputs() const { return inputs_; }
  int64_t rows() const { return rows_; }

  // Adds rows of inputs, [rows, inputs] one every `stride` floats. The result does not depend on
  // threads, nor on the instruction path. RESOURCE_EXHAUSTED: there is no memory.
  absl::Status Add(const float* x, int64_t rows, int64_t stride, ParallelItems parallel);

  // X^T X of all rows, [inputs, inputs].
  std::span<const double> hessian() const { return hessian_; }
  // The mean magnitude of an input.
  double mean(int64_t input) const {
    return rows_ == 0 ? 0 : sizes_[static_cast<size_t>(input)] / static_cast<double>(rows_);
  }
  // The largest magnitude of an input.
  double largest(int64_t input) const { return largest_[static_cast<size_t>(input)]; }

 private:
  absl::Status AddSome(const float* x, int64_t rows, int64_t stride, ParallelItems parallel);

  const int64_t inputs_;
  const kernels::Ops& ops_;
  int64_t rows_ = 0;
  std::vector<double> hessian_;
  std::vector<double> sizes_;   // sums of magnitudes
  std::vector<float> largest_;  // magnitudes
};

// How much errors of weights change the outputs: of a matrix of errors E [rows, inputs] the sum of
// the squares of X E^T over all rows of X.
class OutputError {
 public:
  // Copies what it needs, in fp32. RESOURCE_EXHAUSTED: there is no memory.
  static absl::StatusOr<OutputError> Create(const Importance& importance, const kernels::Ops& ops,
                                            ParallelItems parallel);

  double Of(std::span<const float> errors, int64_t rows, ParallelItems parallel) const;

 private:
  OutputError(kernels::PackedMatrix matrix, const kernels::Ops& ops, int64_t inputs)
      : matrix_(std::move(matrix)), ops_(&ops), inputs_(inputs) {}

  kernels::PackedMatrix matrix_;
  const kernels::Ops* ops_;
  int64_t inputs_;
};

}  // namespace flotilla::quantize
