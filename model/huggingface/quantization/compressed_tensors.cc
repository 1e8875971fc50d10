// compressed-tensors (compressed_tensors/compressors of 0.20), which llm-compressor writes. What a
// layer has tells its format; config_groups say the bits and the groups of integers:
//   weight_packed I32 [N, K b / 32], weight_scale [N, groups], weight_shape; and, if codes have a
//     zero, weight_zero_point I32 [N b / 32, groups]; if groups have an order, weight_g_idx [K].
//     Codes and zeros are stored above 0: weight = scale (code - zero)
//   weight I8 [N, K], weight_scale [N, 1] or [1]; perhaps weight_zero_point, the same
//   weight F8_E4M3 [N, K], weight_scale [N, 1], [1], or by blocks
//   weight_packed U8 [N, K / 2], weight_scale: E4M3 [N, K / 16], divided by weight_global_scale
//     (NVFP4), or exponents [N, K / 32] (MXFP4)
// What input_activations say of 8-bit integers is what recipe `fast` multiplies int8 by:
//   dynamic, per token, symmetric; or static, with input_scale [1], and perhaps input_zero_point
//   [1]
// Of others, and of all in the other recipes, it is not used: those keep their activations.
#include <cmath>
#include <memory>
#include <optional>

#include "common/types/text.h"
#include "model/huggingface/quantization/grouped_tensor.h"
#include "model/huggingface/quantization/layer_tensors.h"

namespace flotilla::model {
namespace {

constexpr std::string_view kPacked = ".weight_packed", kScale = ".weight_scale",
                           kZero = ".weight_zero_point", kShape = ".weight_shape",
                           kOrder = ".weight_g_idx", kGlobal = ".weight_global_scale",
                           kInputScale = ".input_scale", kInputZero = ".input_zero_point";
uint64_t Size(int64_t size) { return static_cast<uint64_t>(size); }

// What a config group says of weights.
struct WeightScheme {
  int64_t bits = 0;
  bool symmetric = true;
  int64_t group = -1;      // -1: a scale for each row
  int64_t block_rows = 0;  // 0: no blocks
  int64_t block_inputs = 0;
  bool integers = true;
  ActivationScheme::Kind activations = ActivationScheme::Kind::kNone;
};

// What a config group says of activations of 8 bits, as far as `fast` follows it.
absl::StatusOr<ActivationScheme::Kind> ReadActivations(const Json& group) {
  using Kind = ActivationScheme::Kind;
  const Json* const inputs = Member(&group, "input_activations");
  if (inputs == nullptr || !inputs->is_object()) return Kind::kNone;
  const auto bits = WholeNumber(*inputs, "num_bits", 8);
  const auto type = Word(*inputs, "type", "int");
  if (!bits.ok()) return bits.status();
  if (!type.ok()) return type.status();
  const Json* const dynamic = Member(inputs, "dynamic");
  const bool is_dynamic = dynamic != nullptr && *dynamic != false;
  const auto strategy = Word(*inputs, "strategy", is_dynamic ? "token" : "tensor");
  if (!strategy.ok()) return strategy.status();
  if (*bits != 8 || *type != "int") return Kind::kNone;
  const Json* const symmetric = Member(inputs, "symmetric");
  const bool is_symmetric = symmetric == nullptr || *symmetric != false;
  if (is_dynamic) {
    const bool per_token = *dynamic == true && *strategy == "token";
    return per_token && is_symmetric ? Kind::kDynamic : Kind::kNone;
  }
  return *strategy == "tensor" ? Kind::kStatic : Kind::kNone;
}

absl::StatusOr<std::vector<WeightScheme>> ReadSchemes(const Json& quantization) {
  const Json* const groups = Member(&quantization, "config_groups");
  if (groups == nullptr || !groups->is_object()) {
    return InvalidArgument("quantization_config has no config_groups");
  }
  constexpr size_t kMostGroups = 256;  // each layer is compared with all of them
  if (groups->size() > kMostGroups) {
    return InvalidArgument("quantization_config: config_groups has ", groups->size(),
                           " groups, not at most ", kMostGroups);
  }
  std::vector<WeightScheme> schemes;
  for (const auto& [name, group] : groups->items()) {
    const Json* const weights = Member(&group, "weights");
    if (weights == nullptr) continue;
    WeightScheme scheme;
    const auto bits = WholeNumber(*weights, "num_bits", 8);
    const auto size = WholeNumber(*weights, "group_size", -1);
    for (const auto* number : {&bits, &size}) {
      if (!number->ok()) return number->status();
    }
    if (*size == 0) return InvalidArgument("quantization_config: group_size = 0");
    scheme.bits = *bits;
    scheme.group = *size;
    const Json* const symmetric = Member(weights, "symmetric");
    scheme.symmetric = symmetric == nullptr || *symmetric != false;
    const auto block = ReadBlockSize(*weights, "block_structure");
    if (!block.ok()) return block.status();
    scheme.block_rows = block->rows;
    scheme.block_inputs = block->inputs;
    const auto type = Word(*weights, "type", "int");
    if (!type.ok()) return type.status();
    scheme.integers = *type == "int";
    const auto activations = ReadActivations(group);
    if (!activations.ok()) return activations.status();
    scheme.activations = *activations;
    schemes.push_back(scheme);
  }
  return schemes;
}

// The scales of a layer of bytes, and the k that have one.
struct ByteScales {
  const Tensor* tensor = nullptr;
  NumberGrid grid;
  int64_t group = 0;
};

absl::StatusOr<ByteScales> FindByteScales(std::string_view layer, int64_t rows, int64_t inputs,
                                          std::span<const WeightScheme> schemes,
                                          const LayerTensors& layers) {
  static constexpr std::initializer_list<GgmlType> kTypes = {GgmlType::kF32, GgmlType::kBF16,
                                                             GgmlType::kF16};
  ByteScales scales{.group = inputs};
  const Tensor* const found = layers.Find(layer, kScale);
  absl::StatusOr<const Tensor*> tensor;
  if (found == nullptr || found->rank == 1) {
    tensor = layers.Get(layer, kScale, kTypes, {1});
  } else if (found->elements() == 1) {
    tensor = layers.Get(layer, kScale, kTypes, {1, 1});
  } else if (found->rank == 2 && found->dims[0] == 1 && found->dims[1] == Size(rows)) {
    tensor = layers.Get(layer, kScale, kTypes, {Size(rows), 1});
    scales.grid.row_step = 1;
  } else {
    // The first one with blocks or groups of this many scales.
    uint64_t down = Size(rows), across = 1;
    for (const WeightScheme& scheme : schemes) {
      const int64_t width = scheme.block_rows > 0 ? scheme.block_inputs
                            : scheme.group > 0    ? scheme.group
                                                  : inputs;
      const int64_t height = scheme.block_rows > 0 ? scheme.block_rows : 1;
      down = Size((rows + height - 1) / height);
      across = Size((inputs + width - 1) / width);
      scales.group = width;
      scales.grid.rows_each = height;
      if (found->rank == 2 && found->dims[1] == down && found->dims[0] == across) break;
    }
    tensor = layers.Get(layer, kScale, kTypes, {down, across});
    scales.grid.row_step = static_cast<int64_t>(across);
    scales.grid.group_step = 1;
  }
  if (!tensor.ok()) return tensor.status();
  scales.tensor = *tensor;
  scales.grid.data = (*tensor)->data;
  scales.grid.type = (*tensor)->type;
  return scales;
}

// What a layer says of activations of 8 bits, and where it says it.
struct LayerActivations {
  ActivationScheme scheme;
  const Tensor* scale = nullptr;
  const Tensor* zero = nullptr;
};

// Groups whose weights are integers of 8 bits must agree; which of them a layer is in is not read.
absl::StatusOr<LayerActivations> FindActivations(std::string_view layer,
                                                 std::span<const WeightScheme> schemes,
                                                 const LayerTensors& layers) {
  using Kind = ActivationScheme::Kind;
  LayerActivations found;
  bool first = true;
  for (const WeightScheme& scheme : schemes) {
    if (!scheme.integers || scheme.bits != 8) continue;
    if (!first && scheme.activations != found.scheme.kind) return LayerActivations();
    found.scheme.kind = scheme.activations;
    first = false;
  }
  if (found.scheme.kind != Kind::kStatic) return found;
  const auto scale =
      layers.Get(layer, kInputScale, {GgmlType::kF32, GgmlType::kBF16, GgmlType::kF16}, {1});
  if (!scale.ok()) return scale.status();
  found.scale = *scale;
  found.scheme.scale = NumberGrid{.data = (*scale)->data, .type = (*scale)->type}.At(0, 0);
  if (!std::isnormal(found.scheme.scale) || found.scheme.scale < 0) {
    return InvalidArgument("tensor ", (*scale)->name, " is ", found.scheme.scale,
                           ", which is no scale of activations");
  }
  if (layers.Find(layer, kInputZero) == nullptr) return found;
  const auto zero = layers.Get(layer, kInputZero, {GgmlType::kI8}, {1});
  if (!zero.ok()) return zero.status();
  found.zero = *zero;
  found.scheme.zero = LoadElement<int8_t>((*zero)->data, 0);
  return found;
}

absl::Status JoinBytes(std::string_view layer, std::span<const WeightScheme> schemes,
                       LayerTensors& layers) {
  const Tensor& found = *layers.Find(layer, ".weight");
  const bool fp8 = found.type == GgmlType::kF8_E4M3;
  const auto weight = layers.Get(layer, ".weight", {found.type}, {found.dims[1], found.dims[0]});
  if (!weight.ok()) return weight.status();
  const auto rows = static_cast<int64_t>(found.dims[1]);
  const auto inputs = static_cast<int64_t>(found.dims[0]);
  if (std::ranges::none_of(schemes, [](const WeightScheme& scheme) { return scheme.bits == 8; })) {
    return InvalidArgument("tensor ", found.name, " is ", fp8 ? "F8_E4M3" : "I8",
                           ", but no config group says 8 bits");
  }
  const auto scales = FindByteScales(layer, rows, inputs, schemes, layers);
  if (!scales.ok()) return scales.status();
  const Tensor* zeros = nullptr;
  const auto some = [&](bool symmetric) {
    return std::ranges::any_of(schemes, [&](const WeightScheme& scheme) {
      return scheme.bits == 8 && scheme.symmetric == symmetric;
    });
  };
  const bool wants_zeros = !fp8 && some(false) && !some(true);
  if (layers.Find(layer, kZero) != nullptr || wants_zeros) {
    if (fp8) return InvalidArgument("tensor ", layer, kZero, " is there, but FP8 has no zeros");
    const Tensor& like = *scales->tensor;
    const auto zero = like.rank == 1
                          ? layers.Get(layer, kZero, {GgmlType::kI8}, {like.dims[0]})
                          : layers.Get(layer, kZero, {GgmlType::kI8}, {like.dims[1], like.dims[0]});
    if (!zero.ok()) return zero.status();
    zeros = *zero;
    if (scales->grid.rows_each != 1) {
      return InvalidArgument("tensor ", layer, kZero, " is there, but scales are those of blocks");
    }
  }
  LayerActivations activations;
  if (!fp8) {
    const auto read = FindActivations(layer, schemes, layers);
    if (!read.ok()) return read.status();
    activations = *read;
  }
  layers.Replace(
      layer, {".weight", kScale, kZero},
      std::make_unique<ByteTensor>(
          GroupedTensor::Shape{.format = fp8 ? "FP8" : "INT8",
                               .rows = rows,
                               .inputs = inputs,
                               .group = scales->group,
                               .order = {}},
          fp8 ? ByteTensor::Bytes::kFp8 : ByteTensor::Bytes::kInt8, (*weight)->data, scales->grid,
          zeros == nullptr ? std::span<const std::byte>() : zeros->data, activations.scheme,
          DataOf({*weight, scales->tensor, zeros, activations.scale, activations.zero})),
      rows, inputs);
  return absl::OkStatus();
}

// The two numbers of weight_shape.
absl::StatusOr<std::pair<int64_t, int64_t>> ReadShape(std::string_view layer,
                                                      const LayerTensors& layers) {
  const auto tensor = layers.Get(layer, kShape, {GgmlType::kI64, GgmlType::kI32}, {2});
  if (!tensor.ok()) return tensor.status();
  const auto at = [&](int i) {
    return (*tensor)->type == GgmlType::kI64 ? LoadElement<int64_t>((*tensor)->data, i)
                                             : LoadElement<int32_t>((*tensor)->data, i);
  };
  for (const int i : {0, 1}) {
    if (at(i) < 1 || at(i) > INT32_MAX) {
      return InvalidArgument("tensor ", (*tensor)->name, ": element ", i, " is ", at(i));
    }
  }
  return std::pair(at(0), at(1));
}

// Codes follow each other without gaps. Earlier versions had ten codes of 3 bits in a word, which
// gives other shapes.
bool IsPackedWidth(int64_t bits) { return bits == 2 || bits == 3 || bits == 4 || bits == 8; }

absl::Status JoinIntegers(std::string_view layer, std::span<const WeightScheme> schemes,
                          LayerTensors& layers) {
  const auto size = ReadShape(layer, layers);
  if (!size.ok()) return size.status();
  const auto [rows, inputs] = *size;
  const Tensor& packed = *layers.Find(layer, kPacked);
  const Tensor* const scale = layers.Find(layer, kScale);
  if (scale == nullptr) return InvalidArgument("tensor ", layer, kScale, " is missing");
  // The scheme is the first one that the shapes have, of those with zeros if there are some.
  const bool has_zeros = layers.Find(layer, kZero) != nullptr;
  const WeightScheme* found = nullptr;
  for (const WeightScheme& scheme : schemes) {
    if (!IsPackedWidth(scheme.bits)) continue;
    const int64_t group = scheme.group == -1 ? inputs : scheme.group;
    if (packed.dims[0] != Size((inputs * scheme.bits + 31) / 32)) continue;
    if (scale->dims[0] != Size((inputs + group - 1) / group)) continue;
    if (found == nullptr) found = &scheme;
    if (scheme.symmetric == has_zeros) continue;
    found = &scheme;
    break;
  }
  if (found == nullptr) {
    std::string says;
    for (const WeightScheme& scheme : schemes) {
      says += Cat(says.empty() ? "" : ", ", scheme.bits, " bits in groups of ", scheme.group);
    }
    return InvalidArgument(
        "tensor ", packed.name, " is ", HfShape(packed), " and ", scale->name, " ", HfShape(*scale),
        " for ", rows, " x ", inputs,
        " weights, which no config group of 2, 3, 4 or 8 bits says; config_groups "
        "say ",
        says);
  }
  const auto bits = static_cast<int>(found->bits);
  const auto of_layer = GroupOf(found->group, inputs, packed);
  if (!of_layer.ok()) return of_layer.status();
  const int64_t group = *of_layer;
  const int64_t groups = (inputs + group - 1) / group;
  const int64_t words = (inputs * bits + 31) / 32;
  const auto codes = layers.Get(layer, kPacked, {GgmlType::kI32}, {Size(rows), Size(words)});
  const auto scales = layers.Get(layer, kScale, {GgmlType::kF16, GgmlType::kBF16, GgmlType::kF32},
                                 {Size(rows), Size(groups)});
  for (const auto* tensor : {&codes, &scales}) {
    if (!tensor->ok()) return tensor->status();
  }
  GroupedTensor::Shape shape{
      .format = Cat("INT", bits), .rows = rows, .inputs = inputs, .group = group, .order = {}};
  IntegerTensor::Parts parts{
      .codes = {(*codes)->data, bits, /*line_step=*/words, /*word_step=*/1},
      .scales = {(*scales)->data, (*scales)->type, /*row_step=*/groups, /*group_step=*/1},
      .zeros = {},
      .data = {}};
  const Tensor *zeros = nullptr, *order = nullptr;
  if (has_zeros || !found->symmetric) {
    const auto tensor =
        layers.Get(layer, kZero, {GgmlType::kI32}, {Size((rows * bits + 31) / 32), Size(groups)});
    if (!tensor.ok()) return tensor.status();
    zeros = *tensor;
    parts.zeros = {zeros->data, bits, /*line_step=*/1, /*word_step=*/groups};
  }
  if (layers.Find(layer, kOrder) != nullptr) {
    const auto tensor = layers.Get(layer, kOrder, {GgmlType::kI32}, {Size(inputs)});
    if (!tensor.ok()) return tensor.status();
    order = *tensor;
    auto read = ReadOrder(*order, group, groups);
    if (!read.ok()) return read.status();
    shape.order = *std::move(read);
  }
  parts.data = DataOf({*codes, *scales, zeros, order, layers.Find(layer, kShape)});
  layers.Replace(layer, {kPacked, kScale, kZero, kShape, kOrder},
                 std::make_unique<IntegerTensor>(std::move(shape), std::move(parts)), rows, inputs);
  return absl::OkStatus();
}

absl::Status JoinFp4(std::string_view layer, LayerTensors& layers) {
  const Tensor& found = *layers.Find(layer, kPacked);
  const auto packed = layers.Get(layer, kPacked, {GgmlType::kU8}, {found.dims[1], found.dims[0]});
  if (!packed.ok()) return packed.status();
  const auto rows = static_cast<int64_t>(found.dims[1]);
  const auto inputs = static_cast<int64_t>(found.dims[0]) * 2;
  const Tensor* global = nullptr;
  float divisor = 1;
  const Tensor* const scale = layers.Find(layer, kScale);
  const bool nvfp4 = scale != nullptr && scale->type == GgmlType::kF8_E4M3;
  if (nvfp4 || layers.Find(layer, kGlobal) != nullptr) {
    const auto tensor = layers.Get(layer, kGlobal, {GgmlType::kF32}, {1});
    if (!tensor.ok()) return tensor.status();
    global = *tensor;
    divisor = LoadElement<float>(global->data, 0);
    if (!std::isnormal(divisor) || divisor < 0) {
      return InvalidArgument("tensor ", global->name, " is ", divisor,
                             ", which is no divisor of scales");
    }
  }
  const int64_t group = global != nullptr ? 16 : 32;
  if (inputs % group != 0) {
    return InvalidArgument("tensor ", found.name, " is ", HfShape(found),
                           ", which holds no whole groups of ", group);
  }
  const uint64_t groups = Size(inputs / group);
  const auto scales =
      global != nullptr
          ? layers.Get(layer, kScale, {GgmlType::kF8_E4M3}, {Size(rows), groups})
          : layers.Get(layer, kScale, {GgmlType::kU8, GgmlType::kF8_E8M0}, {Size(rows), groups});
  if (!scales.ok()) return scales.status();
  const NumberGrid grid{(*scales)->data, global != nullptr ? GgmlType::kF8_E4M3 : GgmlType::kU8,
                        inputs / group, 1};
  layers.Replace(layer, {kPacked, kScale, kGlobal},
                 std::make_unique<Fp4Tensor>(
                     GroupedTensor::Shape{.format = global != nullptr ? "NVFP4" : "MXFP4",
                                          .rows = rows,
                                          .inputs = inputs,
                                          .group = group,
                                          .order = {}},
                     (*packed)->data, grid, divisor, DataOf({*packed, *scales, global})),
                 rows, inputs);
  return absl::OkStatus();
}

absl::Status JoinLayers(std::span<const WeightScheme> schemes, LayerTensors& layers) {
  for (const std::string_view layer : layers.With(kPacked)) {
    const absl::Status status = layers.Find(layer, kPacked)->type == GgmlType::kU8
                                    ? JoinFp4(layer, layers)
                                    : JoinIntegers(layer, schemes, layers);
    if (!status.ok()) return status;
  }
  for (const std::string_view layer : layers.With(".weight")) {
    const GgmlType type = layers.Find(layer, ".weight")->type;
    if (type != GgmlType::kI8 && type != GgmlType::kF8_E4M3) continue;
    if (absl::Status status = JoinBytes(layer, schemes, layers); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Without kv_cache_scheme the outputs of k_proj and v_proj may be quantised for other reasons.
absl::StatusOr<LayerTensors::Fp8KvScales> FindFp8KvScales(const Json& quantization) {
  const Json* const scheme = Member(&quantization, "kv_cache_scheme");
  if (scheme == nullptr || scheme->is_null()) {
    return LayerTensors::Fp8KvScales{.of_outputs = false};
  }
  if (!scheme->is_object()) {
    return InvalidArgument("quantization_config: kv_cache_scheme is no object");
  }
  const auto type = Word(*scheme, "type", "int");
  const auto bits = WholeNumber(*scheme, "num_bits", 8);
  for (const absl::Status& status : {type.status(), bits.status()}) {
    if (!status.ok()) return InvalidArgument("kv_cache_scheme: ", std::string(status.message()));
  }
  const Json* const symmetric = Member(scheme, "symmetric");
  const bool fp8 = *type == "float" && *bits == 8 && (symmetric == nullptr || *symmetric != false);
  return LayerTensors::Fp8KvScales{.by_name = fp8, .of_outputs = fp8};
}

absl::Status JoinCompressedTensors(const Json& quantization, FolderTensors& folder) {
  if (const Json* const sparsity = Member(&quantization, "sparsity_config"); sparsity != nullptr) {
    const auto format = Word(*sparsity, "format", "dense");
    if (!format.ok()) return format.status();
    if (*format != "dense") return NotSupported("sparsity_config: format", *format, "dense");
  }
  const auto format = Word(quantization, "format", "");
  if (!format.ok()) return format.status();
  // Matrices as they are, e.g. because only K and V are quantised.
  constexpr std::string_view kDense = "dense";
  static constexpr std::string_view kFormats[] = {
      "pack-quantized",       "int-quantized",        "float-quantized", "naive-quantized",
      "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision", kDense};
  if (std::ranges::find(kFormats, *format) == std::end(kFormats)) {
    std::string known;
    for (const std::string_view each : kFormats) known += Cat(known.empty() ? "" : ", ", each);
    return NotSupported("format", *format, known);
  }
  const auto schemes = ReadSchemes(quantization);
  if (!schemes.ok()) return schemes.status();
  LayerTensors layers(folder);
  if (absl::Status status = JoinLayers(*schemes, layers); !status.ok()) return status;
  if (layers.replaced() == 0 && *format != kDense) {
    return InvalidArgument(
        "quantization_config: quant_method = 'compressed-tensors', but no tensor ends with ",
        kPacked, " or is I8 or F8_E4M3");
  }
  layers.DropActivationScales();
  const auto fp8 = FindFp8KvScales(quantization);
  if (!fp8.ok()) return fp8.status();
  if (absl::Status status = layers.TakeKvScales(*fp8); !status.ok()) return status;
  layers.Finish();
  return absl::OkStatus();
}

}  // namespace

extern const QuantizationMethod kCompressedTensorsMethod = {"compressed-tensors",
                                                            JoinCompressedTensors};

}  // namespace flotilla::model
