// LayerQuantizer: quantises the matrices of one layer, with what calibration has seen of their
// inputs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "model/tensor_table.h"
#include "quantize/awq.h"
#include "quantize/importance.h"
#include "quantize/integer_matrix.h"
#include "quantize/spqr.h"

namespace flotilla::quantize {

enum class Method : uint8_t {
  kRtn,          // round_to_nearest.h
  kGptq,         // gptq.h
  kAwq,          // awq.h, then round to nearest
  kSmoothQuant,  // smooth_quant.h, then gptq.h; for activations of 8 bits
  kSpqr,         // spqr.h
};

struct Settings {
  Method method = Method::kGptq;
  int bits = 4;
  bool symmetric = true;
  int64_t group = 128;  // inputs that follow each other; 0: each row is a group
  double damp = 0.01;   // GptqFactor::Create
  bool by_importance = true;
  // W8A8: the weights are for activations of 8 bits, one scale for each token. 8 bits, symmetric, a
  // scale for each row.
  bool int8_activations = false;
  double alpha = 0.5;      // SmoothFactors
  double outliers = 0.01;  // the share of the weights, in SpQR

  // SpQR has 3 bits in groups of 16, with zeros, in the order of inputs.
  static Settings Spqr() {
    return {.method = Method::kSpqr,
            .bits = SpqrMatrix::kBits,
            .symmetric = false,
            .group = SpqrMatrix::kGroup,
            .by_importance = false};
  }

  bool calibrates() const { return method != Method::kRtn; }
  // Whether columns of matrices change with what makes their inputs.
  bool balances() const { return method == Method::kAwq || method == Method::kSmoothQuant; }
  // Whether GPTQ chooses the codes.
  bool makes_good() const { return method == Method::kGptq || method == Method::kSmoothQuant; }
  bool operator==(const Settings&) const = default;
};

// What became of a matrix.
struct MatrixReport {
  std::string name;
  int64_t rows = 0;
  int64_t inputs = 0;
  double bits = 0;  // per weight, scales, zeros and outliers included
  // The squares of what quantisation changed in the outputs over those of the outputs, with the
  // calibration's inputs; and the same of rounding to nearest. Negative: nothing was calibrated.
  double error = -1;
  double nearest_error = -1;
};

// A vector or matrix of floats that is another than in the file.
struct ChangedTensor {
  std::string name;
  std::vector<float> values;
};

struct QuantizedLayer {
  std::map<std::string, IntegerMatrix> matrices;  // by the names of their tensors
  std::map<std::string, SpqrMatrix> sparse;       // the same, of SpQR
  std::vector<ChangedTensor> changed;             // norms that have been divided
  std::vector<MatrixReport> reports;
};

// The matrix whose inputs are those of another one of the layer: Q for K and V, gate for up.
std::string ObservedMatrix(const model::ModelSpec& spec, uint32_t layer, std::string_view name);

class LayerQuantizer {
 public:
  // All outlive it.
  LayerQuantizer(const model::Checkpoint& file, const model::ModelSpec& spec,
                 const Settings& settings, const kernels::Ops& ops, ParallelItems parallel)
      : file_(file), spec_(spec), settings_(settings), ops_(ops), parallel_(parallel) {}

  // Whether layers can be quantised so. UNIMPLEMENTED names the part that the method cannot do.
  absl::Status Check() const;

  // `names` are the layer's matrices; `importances` are of those that ObservedMatrix names, and
  // empty if the method does not calibrate. INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  absl::StatusOr<QuantizedLayer> Quantize(
      uint32_t layer, const std::vector<std::string>& names,
      const std::map<std::string, std::unique_ptr<Importance>>& importances) const;

 private:
  // The weights of a tensor in fp32.
  absl::StatusOr<FloatMatrix> Read(const std::string& name) const;
  Grid GridOf(const std::string& name) const;
  int64_t GroupOf(int64_t inputs) const { return settings_.group == 0 ? inputs : settings_.group; }
  // Divides a norm of the layer, and returns the factors that it has really been divided by: those
  // are rounded.
  absl::StatusOr<std::vector<float>> DivideNorm(model::TensorRole norm, model::TensorRole bias,
                                                uint32_t layer, std::span<const float> factors,
                                                QuantizedLayer& out) const;
  // Divides and multiplies what AWQ or SmoothQuant say.
  absl::Status Balance(uint32_t layer,
                       const std::map<std::string, std::unique_ptr<Importance>>& importances,
                       std::map<std::string, FloatMatrix>& matrices, QuantizedLayer& out) const;

  const model::Checkpoint& file_;
  const model::ModelSpec& spec_;
  const Settings& settings_;
  const kernels::Ops& ops_;
  const ParallelItems parallel_;
};

}  // namespace flotilla::quantize
