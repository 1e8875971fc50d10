// Weights of DeferredBackend: the formats of weights, and products with the reference kernels. All
// that DeferredBackend knows about formats is here.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "kernels/packed_matrix.h"
#include "model/tensor.h"
#include "worker/compute/backend.h"
#include "worker/core/split_layout.h"

namespace flotilla::testing {

const kernels::Ops& Reference();

// INVALID_ARGUMENT: the sizes of `what` do not fit.
absl::Status Misfit(std::string_view what);

// Decodes a row of the tensor. `out` has room for it.
absl::Status DecodeRow(const model::Tensor& tensor, std::int64_t row, float* out);

// One row of activations as a product reads it: as it is, or quantised.
struct Operand {
  std::vector<float> values;
  std::vector<std::int16_t> quants;  // empty: not quantised
  std::vector<float> group_sums, scales;
};

// Weights of one product with the reference kernels.
class Weights {
 public:
  // The outputs are those of the parts. A row of inputs has the places one after the other, each a
  // split; without places it is the whole row, in one. INVALID_ARGUMENT: the sizes do not fit;
  // RESOURCE_EXHAUSTED: there is not enough memory.
  static absl::StatusOr<Weights> Create(std::vector<worker::MatrixPart> parts,
                                        std::vector<worker::SplitPlace> places = {});
  // Reads them from the file.
  absl::Status Load();

  Operand OperandOf(worker::Recipe recipe, const float* x) const;
  // Writes the `columns` outputs for one row.
  void Multiply(Operand& x, float* out) const;

  std::int64_t k() const { return matrix_.k(); }
  std::int64_t columns() const { return matrix_.columns(); }
  std::int64_t bytes() const { return matrix_.bytes(); }

 private:
  absl::Status LoadRow(const worker::MatrixPart& part, std::int64_t row, std::int64_t column);

  std::vector<worker::MatrixPart> parts_;
  std::vector<worker::SplitPlace> places_;
  kernels::PackedMatrix matrix_;
};

// Weights of one product whose parts may have several formats, each of which is multiplied as it
// is.
class MixedWeights {
 public:
  // As Weights::Create.
  static absl::StatusOr<MixedWeights> Create(std::vector<worker::MatrixPart> parts);
  absl::Status Load();

  Operand OperandOf(worker::Recipe recipe, const float* x) const;
  void Multiply(Operand& x, float* out) const;

  std::int64_t k() const { return weights_.front().k(); }
  std::int64_t columns() const;
  std::int64_t bytes() const;

 private:
  std::vector<Weights> weights_;  // of consecutive outputs
};

// A number of inputs, filled up to whole blocks.
std::int32_t Whole(std::int64_t inputs);

}  // namespace flotilla::testing
