// AWQ (Lin et al., 2023): inputs that are large have weights that matter. Their columns are made
// larger before they are rounded, and what makes the inputs is made smaller by as much, so that
// the model computes the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "quantize/importance.h"
#include "quantize/integer_matrix.h"

namespace flotilla::quantize {

struct FloatMatrix {
  int64_t rows = 0;
  std::vector<float> weights;  // [rows, inputs]
  std::vector<float> factors;  // [inputs] what columns have been multiplied by; empty: nothing
};

struct AwqScales {
  std::vector<float> factors;  // [inputs]: of the columns
  double exponent = 0;         // of the mean magnitudes, 0: none changes
  double error = 0;            // of the outputs with these factors, rounded to nearest
  double plain_error = 0;      // and without factors
};

// Searches exponents a from 0 to 0.95 in steps of 0.05 for the factors mean^a, over the root of the
// product of the largest and the least of them, with which the outputs of the matrices together
// change least. The matrices have the same inputs. Each factor is a number of bf16.
// RESOURCE_EXHAUSTED: there is no memory.
absl::StatusOr<AwqScales> SearchAwqScales(std::span<const FloatMatrix> matrices,
                                          const Importance& importance, const Grid& grid,
                                          int64_t group, const kernels::Ops& ops,
                                          ParallelItems parallel);

}  // namespace flotilla::quantize
