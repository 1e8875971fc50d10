#include "model/huggingface/quantization/layer_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "model/huggingface/quantization/grouped_tensor.h"

namespace flotilla::model {
namespace {

absl::Status WrongKey(std::string_view key, std::string_view problem) {
  return InvalidArgument("quantization_config: ", key, " ", problem);
}

std::string Shape(std::initializer_list<uint64_t> shape) {
  std::string text;
  for (const uint64_t size : shape) text += Cat(text.empty() ? "" : ", ", size);
  return Cat("[", text, "]");
}

// Tensors without a shape are [1] here.
bool HasShape(const Tensor& tensor, std::initializer_list<uint64_t> shape) {
  if (tensor.rank != std::max<size_t>(shape.size(), 1)) return false;
  uint32_t axis = tensor.rank;
  return std::ranges::all_of(shape, [&](uint64_t size) { return tensor.dims[--axis] == size; });
}

// The number of the layer in the name of a scale of K or V, such as
// "model.layers.3.self_attn.k_scale"; none: the name has no number, several, or one that is too
// large, or no part that is an attention.
std::optional<uint32_t> LayerNumber(std::string_view name) {
  constexpr uint32_t kMost = 4096;
  std::optional<uint32_t> layer;
  bool of_attention = false;
  const std::vector<absl::string_view> parts = absl::StrSplit(ToAbsl(name), '.');
  for (const absl::string_view part : parts) {
    of_attention =
        of_attention || absl::StrContains(part, "attn") || absl::StrContains(part, "attention");
    uint32_t number = 0;
    if (!absl::SimpleAtoi(part, &number)) continue;
    if (layer.has_value() || number >= kMost) return std::nullopt;
    layer = number;
  }
  return of_attention ? layer : std::nullopt;
}

}  // namespace

LayerTensors::LayerTensors(FolderTensors& folder) : folder_(folder) {
  for (const Tensor& tensor : folder.tensors) by_name_[tensor.name] = &tensor;
}

std::vector<std::string_view> LayerTensors::With(std::string_view suffix) const {
  std::vector<std::string_view> layers;
  for (const Tensor& tensor : folder_.tensors) {
    if (!tensor.name.ends_with(suffix)) continue;
    layers.push_back(tensor.name.substr(0, tensor.name.size() - suffix.size()));
  }
  return layers;
}

const Tensor* LayerTensors::Find(std::string_view layer, std::string_view suffix) const {
  const auto found = by_name_.find(Cat(layer, suffix));
  return found == by_name_.end() ? nullptr : found->second;
}

absl::StatusOr<const Tensor*> LayerTensors::Get(std::string_view layer, std::string_view suffix,
                                                std::initializer_list<GgmlType> types,
                                                std::initializer_list<uint64_t> shape) const {
  const Tensor* tensor = Find(layer, suffix);
  if (tensor == nullptr) return InvalidArgument("tensor ", layer, suffix, " is missing");
  if (std::ranges::find(types, tensor->type) == types.end()) {
    std::string names;
    for (const GgmlType type : types) names += Cat(names.empty() ? "" : " or ", GgmlTypeName(type));
    return InvalidArgument("tensor ", tensor->name, " is ", TypeName(*tensor), ", not ", names);
  }
  if (!HasShape(*tensor, shape)) {
    return InvalidArgument("tensor ", tensor->name, " is ", HfShape(*tensor), ", not ",
                           Shape(shape));
  }
  if (tensor->elements() == 0) return InvalidArgument("tensor ", tensor->name, " is empty");
  return tensor;
}

void LayerTensors::Replace(std::string_view layer, std::initializer_list<std::string_view> suffixes,
                           std::unique_ptr<const CompositeTensor> composite, int64_t rows,
                           int64_t inputs) {
  for (const std::string_view suffix : suffixes) Drop(layer, suffix);
  folder_.composites.push_back(std::move(composite));
  made_.push_back({.name = folder_.names.emplace_back(Cat(layer, ".weight")),
                   .rank = 2,
                   .dims = {static_cast<uint64_t>(inputs), static_cast<uint64_t>(rows), 1, 1},
                   .type = GgmlType::kComposite,
                   .data = {},
                   .composite = folder_.composites.back().get()});
}

void LayerTensors::Drop(std::string_view layer, std::string_view suffix) {
  if (const Tensor* tensor = Find(layer, suffix); tensor != nullptr) dropped_.insert(tensor->name);
}

void LayerTensors::DropActivationScales() {
  for (const std::string_view suffix :
       {".input_scale", ".input_zero_point", ".input_global_scale", ".activation_scale",
        ".output_scale", ".output_zero_point", ".q_scale", ".prob_scale", ".prob_output_scale"}) {
    for (const std::string_view layer : With(suffix)) Drop(layer, suffix);
  }
}

absl::Status LayerTensors::TakeKvScales(Fp8KvScales fp8) {
  struct Kind {
    std::string_view suffix;
    bool of_keys, of_values, of_outputs = false;
  };
  static constexpr Kind kKinds[] = {{".k_scale", true, false},
                                    {".v_scale", false, true},
                                    {".kv_scale", true, true},
                                    {".k_proj.output_scale", true, false, true},
                                    {".v_proj.output_scale", false, true, true}};
  for (const Kind& kind : kKinds) {
    const bool are_fp8 = kind.of_outputs ? fp8.of_outputs : fp8.by_name;
    for (const std::string_view layer : With(kind.suffix)) {
      const Tensor& tensor = *Find(layer, kind.suffix);
      Drop(layer, kind.suffix);
      auto used = are_fp8 ? TakeKvScale(tensor, kind.of_keys, kind.of_values) : false;
      if (!used.ok()) return used.status();
      if (*used) continue;
      ++folder_.unused_kv_scales.count;
      folder_.unused_kv_scales.bytes += tensor.data.size();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LayerTensors::TakeKvScale(const Tensor& tensor, bool of_keys, bool of_values) {
  const auto layer = LayerNumber(tensor.name);
  if (tensor.elements() != 1 || !layer.has_value()) return false;
  if (tensor.type != GgmlType::kF32 && tensor.type != GgmlType::kBF16 &&
      tensor.type != GgmlType::kF16) {
    return InvalidArgument("tensor ", tensor.name, " is ", TypeName(tensor),
                           ", not F32 or BF16 or F16");
  }
  const float scale = NumberGrid{.data = tensor.data, .type = tensor.type}.At(0, 0);
  if (std::isfinite(scale) && scale <= 0) return false;  // what vLLM has before it is calibrated
  if (!(scale >= KvScales::kLeast && scale <= KvScales::kLargest)) {
    return InvalidArgument("tensor ", tensor.name, " is ", scale,
                           ", but a scale of K or V is from 1e-30 to 1e30");
  }
  if (*layer >= folder_.kv_scales.size()) folder_.kv_scales.resize(*layer + 1);
  KvScales& scales = folder_.kv_scales[*layer];
  for (const auto& [is_of, place] : {std::pair(of_keys, &scales.key), {of_values, &scales.value}}) {
    if (!is_of) continue;
    if (*place != 0 && *place != scale) {
      return InvalidArgument("tensor ", tensor.name, " is ", scale,
                             ", but another scale of this layer is ", *place);
    }
    *place = scale;
  }
  return true;
}

void LayerTensors::Finish() {
  std::erase_if(folder_.tensors,
                [&](const Tensor& tensor) { return dropped_.contains(tensor.name); });
  folder_.tensors.insert(folder_.tensors.end(), made_.begin(), made_.end());
  by_name_.clear();
}

std::vector<std::span<const std::byte>> DataOf(std::initializer_list<const Tensor*> tensors) {
  std::vector<std::span<const std::byte>> data;
  for (const Tensor* tensor : tensors) {
    if (tensor != nullptr) data.push_back(tensor->data);
  }
  return data;
}

absl::StatusOr<std::vector<int32_t>> ReadOrder(const Tensor& g_idx, int64_t group, int64_t groups) {
  std::vector<int32_t> order(g_idx.elements());
  std::memcpy(order.data(), g_idx.data.data(), g_idx.data.size());
  // compressed-tensors leaves layers without an order at -1. To GPTQ that is the last group.
  if (g_idx.name.ends_with(".weight_g_idx") &&
      std::ranges::all_of(order, [](int32_t of) { return of == -1; })) {
    return std::vector<int32_t>();
  }
  bool neighbours = true;
  for (size_t k = 0; k < order.size(); ++k) {
    if (order[k] < 0 || order[k] >= groups) {
      return InvalidArgument("tensor ", g_idx.name, ": element ", k, " is ", order[k],
                             ", but there are ", groups, " groups");
    }
    neighbours = neighbours && order[k] == static_cast<int64_t>(k) / group;
  }
  if (neighbours) order.clear();
  return order;
}

absl::StatusOr<int64_t> GroupOf(int64_t group_size, int64_t inputs, const Tensor& tensor) {
  if (group_size <= inputs) return group_size == -1 ? inputs : group_size;
  return InvalidArgument("quantization_config: group_size = ", group_size, ", but ", tensor.name,
                         " has ", inputs, " inputs");
}

absl::Status WithSettings(const absl::Status& status, int64_t bits, int64_t group_size) {
  return absl::Status(status.code(),
                      Cat(std::string(status.message()), "; quantization_config says bits = ", bits,
                          " and group_size = ", group_size));
}

absl::Status NotSupported(std::string_view key, std::string_view value, std::string_view known) {
  return Unimplemented("quantization_config: ", key, " = '", absl::CHexEscape(ToAbsl(value)),
                       "' is not supported; supported: ", known);
}

absl::Status NoSuchTensors(std::string_view method, std::string_view suffix) {
  return InvalidArgument("quantization_config: quant_method = '", method,
                         "', but no tensor ends with ", suffix);
}

absl::StatusOr<int64_t> WholeNumber(const Json& object, std::string_view key,
                                    std::optional<int64_t> other) {
  const Json* const value = Member(&object, key);
  if (value == nullptr) {
    if (other.has_value()) return *other;
    return WrongKey(key, "is missing");
  }
  const bool above = value->is_number_unsigned() && value->get<uint64_t>() > INT32_MAX;
  if (!value->is_number_integer() || above || value->get<int64_t>() < -1) {
    return WrongKey(key, "is no whole number in range");
  }
  return value->get<int64_t>();
}

absl::StatusOr<BlockSize> ReadBlockSize(const Json& object, std::string_view key) {
  const Json* const size = Member(&object, key);
  if (size == nullptr) return BlockSize{};
  const auto fits = [](const Json& number) {
    // An integer above INT64_MAX is negative here.
    return number.is_number_integer() && number.get<int64_t>() >= 1 &&
           number.get<int64_t>() <= INT32_MAX;
  };
  if (!size->is_array() || size->size() != 2 || !fits((*size)[0]) || !fits((*size)[1])) {
    return WrongKey(key, "is not two positive numbers");
  }
  return BlockSize{(*size)[0].get<int64_t>(), (*size)[1].get<int64_t>()};
}

absl::StatusOr<bool> Flag(const Json& object, std::string_view key) {
  const Json* const value = Member(&object, key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return WrongKey(key, "is neither true nor false");
  return value->get<bool>();
}

absl::StatusOr<std::string> Word(const Json& object, std::string_view key, std::string_view other) {
  const Json* const value = Member(&object, key);
  if (value == nullptr) return std::string(other);
  if (!value->is_string()) return WrongKey(key, "is no string");
  return value->get<std::string>().substr(0, 40);
}

}  // namespace flotilla::model
