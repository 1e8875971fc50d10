// FP8 as DeepSeek, Qwen and Hugging Face's transformers publish it
// (integrations/finegrained_fp8.py): weight [N, K] is E4M3, beside weight_scale_inv by blocks of
// weight_block_size, or weight_scale or weight_scale_inv of one number. All of them multiply:
// weight = scale value.
#include <memory>

#include "common/types/text.h"
#include "model/huggingface/quantization/grouped_tensor.h"
#include "model/huggingface/quantization/layer_tensors.h"

namespace flotilla::model {
namespace {

constexpr std::string_view kScaleInv = ".weight_scale_inv", kWeightScale = ".weight_scale";

absl::Status JoinLayer(std::string_view layer, const BlockSize& block, LayerTensors& layers) {
  const Tensor& found = *layers.Find(layer, ".weight");
  const auto weight =
      layers.Get(layer, ".weight", {GgmlType::kF8_E4M3}, {found.dims[1], found.dims[0]});
  if (!weight.ok()) return weight.status();
  const auto rows = static_cast<int64_t>(found.dims[1]);
  const auto inputs = static_cast<int64_t>(found.dims[0]);
  if (layers.Find(layer, kScaleInv) == nullptr && layers.Find(layer, kWeightScale) == nullptr) {
    return InvalidArgument("tensor ", found.name, " has neither ", layer, kScaleInv, " nor ", layer,
                           kWeightScale);
  }
  const std::string_view suffix =
      layers.Find(layer, kScaleInv) != nullptr ? kScaleInv : kWeightScale;
  NumberGrid scales;
  int64_t group = inputs;
  absl::StatusOr<const Tensor*> scale;
  if (block.rows == 0) {
    const Tensor* const one = layers.Find(layer, suffix);
    static constexpr std::initializer_list<GgmlType> kTypes = {GgmlType::kF32, GgmlType::kBF16,
                                                               GgmlType::kF16};
    scale = one != nullptr && one->rank == 1 ? layers.Get(layer, suffix, kTypes, {1})
                                             : layers.Get(layer, suffix, kTypes, {1, 1});
  } else {
    const int64_t across = (inputs + block.inputs - 1) / block.inputs;
    const int64_t down = (rows + block.rows - 1) / block.rows;
    scale = layers.Get(
        layer, suffix,
        {GgmlType::kF32, GgmlType::kBF16, GgmlType::kF16, GgmlType::kF8_E8M0, GgmlType::kU8},
        {static_cast<uint64_t>(down), static_cast<uint64_t>(across)});
    group = block.inputs;
    scales.row_step = across;
    scales.group_step = 1;
    scales.rows_each = block.rows;
  }
  if (!scale.ok()) return scale.status();
  scales.data = (*scale)->data;
  scales.type = (*scale)->type;
  layers.Replace(
      layer, {".weight", suffix},
      std::make_unique<ByteTensor>(
          GroupedTensor::Shape{
              .format = "FP8", .rows = rows, .inputs = inputs, .group = group, .order = {}},
          ByteTensor::Bytes::kFp8, (*weight)->data, scales, std::span<const std::byte>(),
          ActivationScheme(), DataOf({*weight, *scale})),
      rows, inputs);
  return absl::OkStatus();
}

absl::Status JoinFp8(const Json& quantization, FolderTensors& folder) {
  const auto block = ReadBlockSize(quantization, "weight_block_size");
  if (!block.ok()) return block.status();
  const auto type = Word(quantization, "fmt", "e4m3");
  if (!type.ok()) return type.status();
  if (*type != "e4m3") return NotSupported("fmt", *type, "e4m3");
  LayerTensors layers(folder);
  for (const std::string_view layer : layers.With(".weight")) {
    if (layers.Find(layer, ".weight")->type != GgmlType::kF8_E4M3) continue;
    if (absl::Status status = JoinLayer(layer, *block, layers); !status.ok()) return status;
  }
  if (layers.replaced() == 0) {
    return InvalidArgument("quantization_config: quant_method = 'fp8', but no tensor is F8_E4M3");
  }
  layers.DropActivationScales();
  if (absl::Status status = layers.TakeKvScales({}); !status.ok()) return status;
  layers.Finish();
  return absl::OkStatus();
}

}  // namespace

extern const QuantizationMethod kFp8Method = {"fp8", JoinFp8};

}  // namespace flotilla::model
