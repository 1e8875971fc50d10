// GPTQ (Frantar et al., 2022) as AutoGPTQ and GPTQModel write it (qlinear_cuda.py): of a layer of N
// outputs and K inputs in codes of b bits
//   qweight [K b / 32, N]       along K
//   qzeros  [groups, N b / 32]  along N; less one, but for checkpoint_format = gptq_v2
//   scales  [groups, N]
//   g_idx   [K]                 the group of each k; without it, k / group_size
// weight = scale (code - zero). A zero that the file has as all ones is 2^b: nothing is masked.
#include <memory>

#include "common/types/text.h"
#include "model/huggingface/quantization/grouped_tensor.h"
#include "model/huggingface/quantization/layer_tensors.h"

namespace flotilla::model {
namespace {

// What quantization_config says.
struct GptqSettings {
  int bits = 4;
  int64_t group_size = -1;
  int zero_offset = 0;
  bool needs_order = false;  // groups are not those of neighbours
};

absl::Status JoinLayer(std::string_view layer, const GptqSettings& settings, LayerTensors& layers) {
  const auto [bits, group_size, zero_offset, needs_order] = settings;
  const Tensor& found = *layers.Find(layer, ".qweight");
  const auto qweight =
      layers.Get(layer, ".qweight", {GgmlType::kI32}, {found.dims[1], found.dims[0]});
  if (!qweight.ok()) return qweight.status();
  const auto rows = static_cast<int64_t>(found.dims[0]);
  const int64_t inputs = static_cast<int64_t>(found.dims[1]) * 32 / bits;
  if (found.dims[1] * 32 % bits != 0 || rows * bits % 32 != 0) {
    return InvalidArgument("tensor ", found.name, " is ", HfShape(found),
                           ", which holds no whole rows of ", bits, " bits");
  }
  const auto of_layer = GroupOf(group_size, inputs, found);
  if (!of_layer.ok()) return of_layer.status();
  const int64_t group = *of_layer;
  const int64_t groups = (inputs + group - 1) / group;
  const auto each = [](int64_t size) { return static_cast<uint64_t>(size); };
  const auto zeros =
      layers.Get(layer, ".qzeros", {GgmlType::kI32}, {each(groups), each(rows * bits / 32)});
  const auto scales =
      layers.Get(layer, ".scales", {GgmlType::kF16, GgmlType::kBF16, GgmlType::kF32},
                 {each(groups), each(rows)});
  for (const auto* tensor : {&zeros, &scales}) {
    if (!tensor->ok()) return WithSettings(tensor->status(), bits, group_size);
  }
  GroupedTensor::Shape shape{
      .format = Cat("GPTQ-", bits), .rows = rows, .inputs = inputs, .group = group};
  const Tensor* g_idx = nullptr;
  if (needs_order || layers.Find(layer, ".g_idx") != nullptr) {
    const auto index = layers.Get(layer, ".g_idx", {GgmlType::kI32}, {each(inputs)});
    if (!index.ok()) return index.status();
    g_idx = *index;
    auto order = ReadOrder(*g_idx, group, groups);
    if (!order.ok()) return order.status();
    shape.order = *std::move(order);
  }
  IntegerTensor::Parts parts{
      .codes = {(*qweight)->data, bits, /*line_step=*/1, /*word_step=*/rows},
      .scales = {(*scales)->data, (*scales)->type, /*row_step=*/1, /*group_step=*/rows},
      .zeros = {(*zeros)->data, bits, /*line_step=*/rows * bits / 32, /*word_step=*/1},
      .zero_offset = zero_offset,
      .data = DataOf({*qweight, *zeros, *scales, g_idx})};
  layers.Replace(layer, {".qweight", ".qzeros", ".scales", ".g_idx"},
                 std::make_unique<IntegerTensor>(std::move(shape), std::move(parts)), rows, inputs);
  return absl::OkStatus();
}

absl::Status JoinGptq(const Json& quantization, FolderTensors& folder) {
  const auto bits = WholeNumber(quantization, "bits");
  const auto group_size = WholeNumber(quantization, "group_size");
  for (const auto* number : {&bits, &group_size}) {
    if (!number->ok()) return number->status();
  }
  // GPTQModel once called it "format".
  const auto older = Word(quantization, "format", "gptq");
  if (!older.ok()) return older.status();
  const auto format = Word(quantization, "checkpoint_format", *older);
  const auto desc_act = Flag(quantization, "desc_act");
  const auto static_groups = Flag(quantization, "static_groups");
  if (!format.ok()) return format.status();
  for (const auto* flag : {&desc_act, &static_groups}) {
    if (!flag->ok()) return flag->status();
  }
  if (*bits != 2 && *bits != 3 && *bits != 4 && *bits != 8) {
    return InvalidArgument("quantization_config: bits = ", *bits,
                           " is not supported; supported: 2, 3, 4, 8");
  }
  if (*group_size == 0) {
    return InvalidArgument("quantization_config: group_size = 0");
  }
  if (*format != "gptq" && *format != "gptq_v2") {
    return NotSupported("checkpoint_format", *format, "gptq, gptq_v2");
  }
  LayerTensors layers(folder);
  const GptqSettings settings{.bits = static_cast<int>(*bits),
                              .group_size = *group_size,
                              .zero_offset = *format == "gptq" ? 1 : 0,
                              .needs_order = *desc_act && !*static_groups && *group_size != -1};
  for (const std::string_view layer : layers.With(".qweight")) {
    if (absl::Status status = JoinLayer(layer, settings, layers); !status.ok()) return status;
  }
  if (layers.replaced() == 0) return NoSuchTensors("gptq", ".qweight");
  layers.Finish();
  return absl::OkStatus();
}

}  // namespace

extern const QuantizationMethod kGptqMethod = {"gptq", JoinGptq};

}  // namespace flotilla::model
