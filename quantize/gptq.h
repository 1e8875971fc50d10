// GPTQ (Frantar et al., 2022): weights are rounded one input at a time, and what each rounding does
// to the outputs is made good with the weights of the inputs that are left, as far as calibration
// has seen these inputs together. In double precision.
//
// With H = X^T X of the inputs X and U the upper triangular matrix of U^T U = H^-1, rounding input
// i adds an error e = (w_i - q_i) / U_ii, and w_j -= e U_ij for all j after i.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "quantize/integer_matrix.h"
#include "quantize/round_to_nearest.h"

namespace flotilla::quantize {

// Rows that are rounded together, so that a row of U is read once for all of them.
inline constexpr int64_t kGptqRows = 16;

// w[j][r] -= errors[r] * u[j] for all j from `begin` on.
void SpreadErrors(const double* u, int64_t begin, int64_t end, const double (&errors)[kGptqRows],
                  double (*w)[kGptqRows]);

// H of inputs that are divided by `factors`. Without factors it is the same.
std::vector<double> DividedHessian(std::span<const double> hessian, std::span<const float> factors);

// What all matrices with the same inputs have in common.
class GptqFactor {
 public:
  // `hessian` is H [inputs, inputs]. `damp` times the mean of its diagonal is added to the
  // diagonal. With `by_importance` the inputs with the largest diagonal are rounded first
  // ("act-order"), while groups stay those of inputs that follow each other. INVALID_ARGUMENT: H is
  // not positive definite, or has numbers that are not finite.
  static absl::StatusOr<GptqFactor> Create(std::span<const double> hessian, int64_t inputs,
                                           double damp, bool by_importance);

  int64_t inputs() const { return inputs_; }
  bool by_importance() const { return by_importance_; }
  // The input that is rounded i-th.
  std::span<const int32_t> order() const { return order_; }
  // Inputs that calibration has never seen other than 0. Their weights become 0.
  bool dead(int64_t input) const { return dead_[static_cast<size_t>(input)]; }
  // U, by the order: row i from column i on.
  std::span<const double> row(int64_t i) const {
    return std::span(upper_).subspan(static_cast<size_t>(i * inputs_),
                                     static_cast<size_t>(inputs_));
  }

 private:
  int64_t inputs_ = 0;
  bool by_importance_ = false;
  std::vector<int32_t> order_;
  std::vector<bool> dead_;
  std::vector<double> upper_;  // [inputs, inputs]
};

// `weights` are [rows, inputs]. Without by_importance a group gets its scale when its first input
// is rounded, else all groups before the first. Rows do not depend on each other.
IntegerMatrix Gptq(std::span<const float> weights, int64_t rows, const GptqFactor& factor,
                   const Grid& grid, int64_t group, ParallelItems parallel);

}  // namespace flotilla::quantize
