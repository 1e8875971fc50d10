#include "tests/support/deferred_weights.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/ggml_type.h"
#include "model/tensor_table.h"

namespace flotilla::testing {
namespace {

std::int64_t InputsOf(const worker::MatrixPart& part) {
  return static_cast<std::int64_t>(part.tensor->dims[part.transposed ? 1 : 0]);
}

// Whether all rows of the part are in the tensor.
bool HasRows(const worker::MatrixPart& part) {
  const auto rows = static_cast<std::int64_t>(part.tensor->dims[part.transposed ? 0 : 1]);
  for (std::int64_t row = part.rows.begin; row < part.rows.end; ++row) {
    if (part.map.At(row) < 0 || part.map.At(row) >= rows) return false;
  }
  return part.rows.begin <= part.rows.end && part.count() >= part.rows.size();
}

}  // namespace

const kernels::Ops& Reference() { return kernels::GetOps(kernels::Isa::kReference); }

absl::Status Misfit(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the sizes do not fit: ", std::string(what)));
}

absl::Status DecodeRow(const model::Tensor& tensor, std::int64_t row, float* out) {
  return model::DecodeRow(tensor, row, {out, static_cast<std::size_t>(tensor.dims[0])});
}

std::int32_t Whole(std::int64_t inputs) {
  return static_cast<std::int32_t>((inputs + worker::kSplitBlock - 1) / worker::kSplitBlock *
                                   worker::kSplitBlock);
}

absl::StatusOr<Weights> Weights::Create(std::vector<worker::MatrixPart> parts,
                                        std::vector<worker::SplitPlace> places) {
  if (parts.empty()) return Misfit("a matrix has no parts");
  const std::int64_t inputs = InputsOf(parts.front());
  if (places.empty()) {
    const auto end = static_cast<std::int32_t>(inputs);
    places.push_back({.begin = 0, .end = end, .at = 0, .width = Whole(end)});
  }
  WeightEncoding encoding = parts.front().encoding();
  std::int64_t columns = 0;
  for (const worker::MatrixPart& part : parts) {
    const auto name = std::string(part.tensor->name);
    if (InputsOf(part) != inputs) {
      return Misfit(absl::StrCat("the rows of ", name, " are not as long as those beside it"));
    }
    if (!HasRows(part)) return Misfit(absl::StrCat(name, " has not all the rows"));
    // Parts of several encodings become fp32.
    if (part.encoding() != encoding) encoding = {};
    columns += part.count();
  }
  std::vector<std::int32_t> ends;
  for (worker::SplitPlace& place : places) {
    if (place.end > inputs) return Misfit(absl::StrCat("inputs to ", place.end, " of ", inputs));
    place.at = ends.empty() ? 0 : ends.back();
    ends.push_back(place.at + place.width);
  }
  std::vector<std::int32_t> file_blocks;
  for (const worker::SplitPlace& place : places) {
    for (std::int32_t at = 0; at < place.width; at += kernels::kBlockK) {
      file_blocks.push_back((place.first() + at) / kernels::kBlockK);
    }
  }
  auto matrix = kernels::PackedMatrix::Create(encoding, columns, ends.back(), ends, file_blocks);
  if (!matrix.ok()) return matrix.status();
  Weights weights;
  weights.parts_ = std::move(parts);
  weights.places_ = std::move(places);
  weights.matrix_ = *std::move(matrix);
  return weights;
}

absl::Status Weights::Load() {
  std::int64_t column = 0;
  for (const worker::MatrixPart& part : parts_) {
    for (std::uint32_t row = 0; row < part.rows.size(); ++row) {
      const absl::Status loaded = LoadRow(part, part.map.At(part.rows.begin + row), column + row);
      if (loaded.ok()) continue;
      return absl::Status(loaded.code(),
                          absl::StrCat(std::string(part.tensor->name), ": ", loaded.message()));
    }
    column += part.count();
  }
  parts_.clear();
  return absl::OkStatus();
}

absl::Status Weights::LoadRow(const worker::MatrixPart& part, std::int64_t row,
                              std::int64_t column) {
  const auto read = part.transposed ? model::ReadTransposedPanel : model::ReadPanel;
  const auto panel = std::make_unique<WeightPanel>();
  for (const worker::SplitPlace& place : places_) {
    const std::int64_t end = std::min<std::int64_t>(place.first() + place.width, InputsOf(part));
    std::int64_t next;
    for (std::int64_t first = place.first(); first < end; first = next) {
      next = std::min(first / kPanelWindow * kPanelWindow + kPanelWindow, end);
      absl::Status status = read(*part.tensor, {&row, 1}, first, next, matrix_.encoding(), *panel);
      if (status.ok()) status = matrix_.PackPanel(*panel, column, place.at + first - place.first());
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

Operand Weights::OperandOf(worker::Recipe recipe, const float* x) const {
  Operand operand{
      .values = std::vector<float>(x, x + k()), .quants = {}, .group_sums = {}, .scales = {}};
  if (recipe != worker::Recipe::kAccurate || !matrix_.quantized()) return operand;
  const kernels::MatrixView view = matrix_.view();
  operand.quants.resize(static_cast<std::size_t>(view.k));
  operand.group_sums.resize(static_cast<std::size_t>(view.k / kernels::kSumSpan));
  operand.scales.resize(static_cast<std::size_t>(view.split_count));
  Reference().quantize_rows({.x = operand.values.data(),
                             .x_stride = view.k,
                             .k = view.k,
                             .split_count = view.split_count,
                             .split_ends = view.split_ends,
                             .out = {.values = operand.quants.data(),
                                     .group_sums = operand.group_sums.data(),
                                     .scales = operand.scales.data()}},
                            0, 1);
  return operand;
}

void Weights::Multiply(Operand& x, float* out) const {
  const kernels::MatrixView view = matrix_.view();
  if (x.quants.empty() || !matrix_.quantized()) {
    Reference().matmul_f32({.weights = view,
                            .x = x.values.data(),
                            .x_stride = view.k,
                            .rows = 1,
                            .out = out,
                            .out_stride = view.columns},
                           0, view.panels());
    return;
  }
  Reference().matmul_i16({.weights = view,
                          .x = {.values = x.quants.data(),
                                .group_sums = x.group_sums.data(),
                                .scales = x.scales.data()},
                          .rows = 1,
                          .out = out,
                          .out_stride = view.columns},
                         0, view.panels());
}

absl::StatusOr<MixedWeights> MixedWeights::Create(std::vector<worker::MatrixPart> parts) {
  if (parts.empty()) return Misfit("a matrix has no parts");
  MixedWeights mixed;
  for (auto begin = parts.begin(); begin != parts.end();) {
    const auto end = std::find_if(begin, parts.end(), [&](const worker::MatrixPart& part) {
      return part.encoding() != begin->encoding();
    });
    auto weights = Weights::Create({begin, end});
    if (!weights.ok()) return weights.status();
    if (!mixed.weights_.empty() && weights->k() != mixed.k()) {
      return Misfit("rows of a matrix are not equally long");
    }
    mixed.weights_.push_back(*std::move(weights));
    begin = end;
  }
  return mixed;
}

absl::Status MixedWeights::Load() {
  absl::Status status;
  for (Weights& weights : weights_) status.Update(weights.Load());
  return status;
}

Operand MixedWeights::OperandOf(worker::Recipe recipe, const float* x) const {
  Operand operand;
  for (const Weights& weights : weights_) {
    operand = weights.OperandOf(recipe, x);
    if (!operand.quants.empty()) break;
  }
  return operand;
}

void MixedWeights::Multiply(Operand& x, float* out) const {
  for (const Weights& weights : weights_) {
    weights.Multiply(x, out);
    out += weights.columns();
  }
}

std::int64_t MixedWeights::columns() const {
  std::int64_t columns = 0;
  for (const Weights& weights : weights_) columns += weights.columns();
  return columns;
}

std::int64_t MixedWeights::bytes() const {
  std::int64_t bytes = 0;
  for (const Weights& weights : weights_) bytes += weights.bytes();
  return bytes;
}

}  // namespace flotilla::testing
