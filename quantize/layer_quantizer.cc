#include "quantize/layer_quantizer.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "common/types/text.h"
#include "kernels/scalar_math.h"
#include "model/tensor.h"
#include "model/tensor_table.h"
#include "quantize/gptq.h"
#include "quantize/round_to_nearest.h"
#include "quantize/smooth_quant.h"

namespace flotilla::quantize {
namespace {

using model::TensorRole;

// The tensor of a role in a layer; empty: there is none.
std::string NameOf(const model::ModelSpec& spec, TensorRole role, uint32_t layer) {
  const model::TensorRow* const row = model::FindRow(spec, role);
  if (row == nullptr || !model::IsInLayer(role, spec.layers[layer])) return {};
  return model::NameInFile(*row, layer);
}

void ReadRow(const IntegerMatrix& matrix, int64_t row, std::span<float> out) {
  for (int64_t k = 0; k < matrix.inputs; ++k) out[static_cast<size_t>(k)] = matrix.At(row, k);
}
void ReadRow(const SpqrMatrix& matrix, int64_t row, std::span<float> out) {
  matrix.ReadRow(row, out);
}

// The errors of the weights, for inputs that are divided by `factors`, if there are any.
template <class Matrix>
std::vector<float> Difference(const Matrix& matrix, std::span<const float> weights,
                              std::span<const float> factors, ParallelItems parallel) {
  std::vector<float> errors(weights.size());
  const auto inputs = static_cast<size_t>(matrix.inputs);
  parallel(matrix.rows, [&](int64_t row) {
    const size_t begin = static_cast<size_t>(row) * inputs;
    const auto own = std::span(errors).subspan(begin, inputs);
    ReadRow(matrix, row, own);
    for (size_t k = 0; k < inputs; ++k) {
      own[k] = (own[k] - weights[begin + k]) / (factors.empty() ? 1 : factors[k]);
    }
  });
  return errors;
}

// The number as a tensor of this type has it.
float Stored(float value, model::GgmlType type) {
  if (type != model::GgmlType::kBF16 && type != model::GgmlType::kF16) return value;
  const ScaleType bits = type == model::GgmlType::kBF16 ? ScaleType::kBf16 : ScaleType::kFp16;
  return ScaleOf(BitsOf(value, bits), bits);
}

bool AllFinite(const SpqrMatrix& matrix) {
  const auto finite = [](uint16_t half) { return std::isfinite(kernels::HalfToFloat(half)); };
  return std::ranges::all_of(matrix.scales,
                             [&](const CodedScale& scale) {
                               return finite(scale.scale_step) && finite(scale.zero_step) &&
                                      finite(scale.scale_zero) && finite(scale.zero_zero);
                             }) &&
         std::ranges::all_of(matrix.outliers, [&](const auto& row) {
           return std::ranges::all_of(
               row, [&](const SpqrMatrix::Outlier& outlier) { return finite(outlier.value); });
         });
}

bool AllFinite(const IntegerMatrix& matrix) {
  return std::ranges::all_of(matrix.scales,
                             [](const GroupScale& group) { return std::isfinite(group.scale); });
}

}  // namespace

std::string ObservedMatrix(const model::ModelSpec& spec, uint32_t layer, std::string_view name) {
  constexpr std::pair<TensorRole, TensorRole> kShared[] = {{TensorRole::kKey, TensorRole::kQuery},
                                                           {TensorRole::kValue, TensorRole::kQuery},
                                                           {TensorRole::kUp, TensorRole::kGate}};
  for (const auto& [role, observed] : kShared) {
    if (NameOf(spec, role, layer) != name) continue;
    std::string other = NameOf(spec, observed, layer);
    if (!other.empty()) return other;
  }
  return std::string(name);
}

absl::Status LayerQuantizer::Check() const {
  if (settings_.calibrates()) {
    for (const model::LayerSpec& layer : spec_.layers) {
      if (layer.moe.has_value() || layer.attention.latent.has_value()) {
        return Unimplemented("models with experts or a latent are quantised by --method rtn only");
      }
    }
  }
  if (!settings_.balances()) return absl::OkStatus();
  const std::string_view method = settings_.method == Method::kAwq ? "AWQ" : "SmoothQuant";
  for (const model::LayerSpec& layer : spec_.layers) {
    if (layer.wiring != model::Wiring::kSequential || !layer.norms_before || !layer.ffn.gated) {
      return Unimplemented(
          method, " needs layers with a norm before attention and another before a gated FFN; ",
          settings_.int8_activations ? "--method gptq --activations int8" : "--method gptq",
          " needs none");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FloatMatrix> LayerQuantizer::Read(const std::string& name) const {
  const model::Tensor& tensor = *file_.FindTensor(name);
  const auto inputs = static_cast<size_t>(tensor.dims[0]);
  FloatMatrix matrix{
      .rows = static_cast<int64_t>(tensor.elements() / inputs), .weights = {}, .factors = {}};
  matrix.weights.resize(tensor.elements());
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const auto out = std::span(matrix.weights).subspan(static_cast<size_t>(row) * inputs, inputs);
    absl::Status status = model::DecodeRow(tensor, row, out);
    if (!status.ok()) return status;
    if (std::ranges::any_of(out, [](float weight) { return !std::isfinite(weight); })) {
      return InvalidArgument("tensor ", name, ", row ", row, ": a weight is not finite");
    }
  }
  return matrix;
}

Grid LayerQuantizer::GridOf(const std::string& name) const {
  const bool bf16 = file_.FindTensor(name)->type == model::GgmlType::kBF16;
  return {.bits = settings_.bits,
          .symmetric = settings_.symmetric,
          .scales = bf16 ? ScaleType::kBf16 : ScaleType::kFp16};
}

absl::StatusOr<std::vector<float>> LayerQuantizer::DivideNorm(TensorRole norm, TensorRole bias,
                                                              uint32_t layer,
                                                              std::span<const float> factors,
                                                              QuantizedLayer& out) const {
  const std::string name = NameOf(spec_, norm, layer);
  auto weights = Read(name);
  if (!weights.ok()) return weights.status();
  const float plus = model::FindRow(spec_, norm)->plus;
  const model::GgmlType type = file_.FindTensor(name)->type;
  // The file's numbers are rounded, so the factors are what has really been divided.
  std::vector<float> real;
  for (size_t i = 0; i < factors.size(); ++i) {
    float& stored = weights->weights[i];
    const float divided = Stored((stored + plus) / factors[i] - plus, type);
    const float factor = (stored + plus) / (divided + plus);
    const bool divides = std::isfinite(factor) && factor > 0;
    real.push_back(divides ? factor : 1);
    if (divides) stored = divided;
  }
  out.changed.push_back({name, std::move(weights->weights)});
  if (const std::string other = NameOf(spec_, bias, layer); !other.empty()) {
    auto values = Read(other);
    if (!values.ok()) return values.status();
    for (size_t i = 0; i < real.size(); ++i) values->weights[i] /= real[i];
    out.changed.push_back({other, std::move(values->weights)});
  }
  return real;
}

absl::Status LayerQuantizer::Balance(
    uint32_t layer, const std::map<std::string, std::unique_ptr<Importance>>& importances,
    std::map<std::string, FloatMatrix>& matrices, QuantizedLayer& out) const {
  const auto factors_of =
      [&](const std::vector<std::string>& names) -> absl::StatusOr<std::vector<float>> {
    std::vector<FloatMatrix> together;
    for (const std::string& name : names) together.push_back(matrices.at(name));
    const Importance& importance = *importances.at(ObservedMatrix(spec_, layer, names.front()));
    if (settings_.method == Method::kSmoothQuant) {
      return SmoothFactors(together, importance, settings_.alpha);
    }
    auto scales = SearchAwqScales(together, importance, GridOf(names.front()),
                                  GroupOf(importance.inputs()), ops_, parallel_);
    if (!scales.ok()) return scales.status();
    return std::move(scales->factors);
  };
  const auto multiply = [&](const std::string& name, const std::vector<float>& factors) {
    FloatMatrix& matrix = matrices.at(name);
    for (size_t i = 0; i < matrix.weights.size(); ++i) {
      matrix.weights[i] *= factors[i % factors.size()];
    }
    matrix.factors = factors;
  };
  // The tensors of the roles, each once. None if one of them is not quantised: its columns stay.
  const auto names_of = [&](std::initializer_list<TensorRole> roles) {
    std::vector<std::string> names;
    for (const TensorRole role : roles) {
      std::string name = NameOf(spec_, role, layer);
      if (name.empty() || std::ranges::find(names, name) != names.end()) continue;
      if (!matrices.contains(name)) return std::vector<std::string>();
      names.push_back(std::move(name));
    }
    return names;
  };
  // The down product first: up's rows are those of its inputs, and gate makes none of them.
  const std::vector<std::string> down = names_of({TensorRole::kDown});
  const std::string up = NameOf(spec_, TensorRole::kUp, layer);
  const model::TensorRow* const up_row = model::FindRow(spec_, TensorRole::kUp);
  if (!down.empty() && matrices.contains(up) && up != NameOf(spec_, TensorRole::kGate, layer) &&
      up_row->map == model::RowMap{} && model::FindRow(spec_, TensorRole::kUpBias) == nullptr) {
    const auto factors = factors_of(down);
    if (!factors.ok()) return factors.status();
    multiply(down.front(), *factors);
    FloatMatrix& rows = matrices.at(up);
    const size_t inputs = rows.weights.size() / static_cast<size_t>(rows.rows);
    for (size_t i = 0; i < rows.weights.size(); ++i) {
      rows.weights[i] /= (*factors)[i / inputs];
    }
  }
  struct Group {
    TensorRole norm, bias;  // what makes the inputs
    std::vector<std::string> names;
  };
  const Group groups[] = {{TensorRole::kAttentionNorm, TensorRole::kAttentionNormBias,
                           names_of({TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue})},
                          {TensorRole::kFfnNorm, TensorRole::kFfnNormBias,
                           names_of({TensorRole::kGate, TensorRole::kUp})}};
  for (const Group& group : groups) {
    if (group.names.empty() || NameOf(spec_, group.norm, layer).empty()) continue;
    const auto wanted = factors_of(group.names);
    if (!wanted.ok()) return wanted.status();
    const auto factors = DivideNorm(group.norm, group.bias, layer, *wanted, out);
    if (!factors.ok()) return factors.status();
    for (const std::string& name : group.names) multiply(name, *factors);
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizedLayer> LayerQuantizer::Quantize(
    uint32_t layer, const std::vector<std::string>& names,
    const std::map<std::string, std::unique_ptr<Importance>>& importances) const {
  QuantizedLayer out;
  std::map<std::string, FloatMatrix> matrices;
  for (const std::string& name : names) {
    auto matrix = Read(name);
    if (!matrix.ok()) return matrix.status();
    matrices[name] = *std::move(matrix);
  }
  const std::map<std::string, FloatMatrix> plain =
      settings_.balances() ? matrices : std::map<std::string, FloatMatrix>();
  if (settings_.balances()) {
    absl::Status status = Balance(layer, importances, matrices, out);
    if (!status.ok()) return status;
  }
  std::map<std::string, GptqFactor> factors;
  std::map<std::string, OutputError> measures;
  for (const std::string& name : names) {
    const FloatMatrix& matrix = matrices.at(name);
    const int64_t inputs = static_cast<int64_t>(matrix.weights.size()) / matrix.rows;
    const Grid grid = GridOf(name);
    const int64_t group = GroupOf(inputs);
    MatrixReport report{.name = name, .rows = matrix.rows, .inputs = inputs};
    const std::string observed = ObservedMatrix(spec_, layer, name);
    const auto importance = importances.find(observed);
    if (settings_.calibrates() && importance == importances.end()) {
      return absl::InternalError(Cat("no inputs of ", name, " were seen"));
    }
    IntegerMatrix quantized;
    SpqrMatrix sparse;
    const bool is_sparse = settings_.method == Method::kSpqr;
    if (settings_.makes_good() || is_sparse) {
      if (!factors.contains(observed)) {
        // All matrices with these inputs have been multiplied alike.
        const std::vector<double> divided =
            DividedHessian(importance->second->hessian(), matrix.factors);
        auto factor = GptqFactor::Create(divided, inputs, settings_.damp, settings_.by_importance);
        if (!factor.ok()) return factor.status();
        factors.emplace(observed, *std::move(factor));
      }
    }
    if (is_sparse) {
      sparse =
          Spqr(matrix.weights, matrix.rows, factors.at(observed), settings_.outliers, parallel_);
    } else if (settings_.makes_good()) {
      quantized = Gptq(matrix.weights, matrix.rows, factors.at(observed), grid, group, parallel_);
    } else {
      quantized = RoundToNearest(matrix.weights, matrix.rows, inputs, grid, group, parallel_);
    }
    if (!(is_sparse ? AllFinite(sparse) : AllFinite(quantized))) {
      return InvalidArgument("tensor ", name, ": weights are too large for scales of 16 bits");
    }
    if (importance != importances.end()) {
      if (!measures.contains(observed)) {
        auto measure = OutputError::Create(*importance->second, ops_, parallel_);
        if (!measure.ok()) return measure.status();
        measures.emplace(observed, *std::move(measure));
      }
      const auto error_of = [&](const auto& integers, std::span<const float> weights,
                                std::span<const float> by) {
        const OutputError& measure = measures.at(observed);
        const IntegerMatrix nothing(grid, matrix.rows, inputs, group);
        const double whole =
            measure.Of(Difference(nothing, weights, by, parallel_), matrix.rows, parallel_);
        if (whole == 0) return 0.0;  // nothing comes out of the layer
        return measure.Of(Difference(integers, weights, by, parallel_), matrix.rows, parallel_) /
               whole;
      };
      const auto& before = plain.empty() ? matrix.weights : plain.at(name).weights;
      report.error = is_sparse ? error_of(sparse, matrix.weights, {})
                               : error_of(quantized, matrix.weights, matrix.factors);
      report.nearest_error =
          error_of(RoundToNearest(before, matrix.rows, inputs, grid, group, parallel_), before, {});
    }
    report.bits = is_sparse ? sparse.bits_per_weight() : quantized.bits_per_weight();
    out.reports.push_back(std::move(report));
    if (is_sparse) {
      out.sparse[name] = std::move(sparse);
    } else {
      out.matrices[name] = std::move(quantized);
    }
  }
  return out;
}

}  // namespace flotilla::quantize
