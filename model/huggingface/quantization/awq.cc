// AWQ (Lin et al., 2023) as AutoAWQ writes it (packing_utils.py, version GEMM): of a layer of N
// outputs and K inputs in codes of 4 bits
//   qweight [K, N / 8]       along N
//   qzeros  [groups, N / 8]  the same
//   scales  [groups, N]
// where the eight outputs of a word have an order of their own. weight = scale (code - zero).
#include <memory>

#include "common/types/text.h"
#include "model/huggingface/quantization/grouped_tensor.h"
#include "model/huggingface/quantization/layer_tensors.h"

namespace flotilla::model {
namespace {

constexpr int kBits = 4;
// The nibble that has output n % 8.
constexpr int8_t kPlaces[8] = {0, 4, 1, 5, 2, 6, 3, 7};

absl::Status JoinLayer(std::string_view layer, int64_t group_size, LayerTensors& layers) {
  const Tensor& found = *layers.Find(layer, ".qweight");
  const auto qweight =
      layers.Get(layer, ".qweight", {GgmlType::kI32}, {found.dims[1], found.dims[0]});
  if (!qweight.ok()) return qweight.status();
  const auto rows = static_cast<int64_t>(found.dims[0]) * 8;
  const auto inputs = static_cast<int64_t>(found.dims[1]);
  const auto of_layer = GroupOf(group_size, inputs, found);
  if (!of_layer.ok()) return of_layer.status();
  const int64_t group = *of_layer;
  const auto groups = static_cast<uint64_t>((inputs + group - 1) / group);
  const auto zeros = layers.Get(layer, ".qzeros", {GgmlType::kI32}, {groups, found.dims[0]});
  const auto scales =
      layers.Get(layer, ".scales", {GgmlType::kF16, GgmlType::kBF16, GgmlType::kF32},
                 {groups, static_cast<uint64_t>(rows)});
  for (const auto* tensor : {&zeros, &scales}) {
    if (!tensor->ok()) return WithSettings(tensor->status(), kBits, group_size);
  }
  GroupedTensor::Shape shape{
      .format = "AWQ-4", .rows = rows, .inputs = inputs, .group = group, .order = {}};
  IntegerTensor::Parts parts{
      .codes = {(*qweight)->data, kBits, /*line_step=*/rows / 8, /*word_step=*/1},
      .lines_are_inputs = true,
      .scales = {(*scales)->data, (*scales)->type, /*row_step=*/1, /*group_step=*/rows},
      .zeros = {(*zeros)->data, kBits, /*line_step=*/rows / 8, /*word_step=*/1},
      .places = &kPlaces,
      .data = DataOf({*qweight, *zeros, *scales})};
  layers.Replace(layer, {".qweight", ".qzeros", ".scales"},
                 std::make_unique<IntegerTensor>(std::move(shape), std::move(parts)), rows, inputs);
  return absl::OkStatus();
}

absl::Status JoinAwq(const Json& quantization, FolderTensors& folder) {
  const auto bits = WholeNumber(quantization, "bits");
  const auto group_size = WholeNumber(quantization, "group_size");
  for (const auto* number : {&bits, &group_size}) {
    if (!number->ok()) return number->status();
  }
  auto version = Word(quantization, "version", "gemm");
  if (!version.ok()) return version.status();
  if (*bits != kBits) {
    return InvalidArgument("quantization_config: bits = ", *bits,
                           " is not supported; supported: 4");
  }
  if (*group_size == 0) {
    return InvalidArgument("quantization_config: group_size = 0");
  }
  if (*version != "gemm" && *version != "GEMM") return NotSupported("version", *version, "gemm");
  LayerTensors layers(folder);
  for (const std::string_view layer : layers.With(".qweight")) {
    const absl::Status status = JoinLayer(layer, *group_size, layers);
    if (!status.ok()) return status;
  }
  if (layers.replaced() == 0) return NoSuchTensors("awq", ".qweight");
  layers.Finish();
  return absl::OkStatus();
}

}  // namespace

extern const QuantizationMethod kAwqMethod = {"awq", JoinAwq};

}  // namespace flotilla::model
