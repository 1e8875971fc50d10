// bitsandbytes (functional.py: QuantState, int8_vectorwise_dequant). Of a layer of N outputs and K
// inputs:
//   4 bits  weight U8 [N K / 2, 1] are places in quant_map, row after row, the first in the high
//           nibble. Blocks of `blocksize` places, which may cross rows, have an absmax:
//           F32 [blocks], or U8 places in nested_quant_map with F32 nested_absmax for each
//           `nested_blocksize` of them, plus nested_offset. quant_state.bitsandbytes__nf4 (or
//           __fp4) is JSON in bytes. weight = absmax quant_map[place]
//   8 bits  weight I8 [N, K], SCB F32 [N]. weight = SCB / 127 code
#include <cmath>
#include <memory>

#include "common/types/text.h"
#include "model/huggingface/quantization/grouped_tensor.h"
#include "model/huggingface/quantization/layer_tensors.h"

namespace flotilla::model {
namespace {

constexpr std::string_view kAbsmax = ".weight.absmax", kMap = ".weight.quant_map",
                           kNestedAbsmax = ".weight.nested_absmax",
                           kNestedMap = ".weight.nested_quant_map",
                           kNf4State = ".weight.quant_state.bitsandbytes__nf4",
                           kFp4State = ".weight.quant_state.bitsandbytes__fp4";

// What the JSON of a 4-bit layer says.
struct QuantState {
  int64_t rows = 0, inputs = 0;
  int64_t block = 0;
  int64_t nested_block = 0;  // 0: absmax are numbers
  float nested_offset = 0;
};

absl::StatusOr<QuantState> ReadState(const Tensor& tensor) {
  const std::string_view text(reinterpret_cast<const char*>(tensor.data.data()),
                              tensor.data.size());
  const std::string what = Cat("tensor ", tensor.name);
  constexpr JsonBounds kBounds{.bytes = 4096, .depth = 4};
  auto json = ParseJsonObject(text, what, kBounds);
  if (!json.ok()) return json.status();
  const auto number = [&](const Json* value, int64_t most) -> absl::StatusOr<int64_t> {
    if (value == nullptr || !value->is_number_integer() || *value < 1 || *value > most) {
      return InvalidArgument(what,
                             ": shape, blocksize or nested_blocksize is missing or no number "
                             "from 1 to ",
                             most);
    }
    return value->get<int64_t>();
  };
  const Json* const shape = Member(&*json, "shape");
  if (shape == nullptr || !shape->is_array() || shape->size() != 2) {
    return InvalidArgument(what, ": shape is not two numbers");
  }
  const auto rows = number(&(*shape)[0], INT32_MAX), inputs = number(&(*shape)[1], INT32_MAX);
  const auto block = number(Member(&*json, "blocksize"), 1 << 20);
  for (const auto* each : {&rows, &inputs, &block}) {
    if (!each->ok()) return each->status();
  }
  QuantState state{.rows = *rows, .inputs = *inputs, .block = *block};
  const Json* const offset = Member(&*json, "nested_offset");
  if (offset == nullptr) return state;
  const auto nested = number(Member(&*json, "nested_blocksize"), 1 << 20);
  if (!nested.ok()) return nested.status();
  if (!offset->is_number() || std::fabs(offset->get<double>()) > 1e30) {
    return InvalidArgument(what, ": nested_offset is no number up to 1e30");
  }
  state.nested_block = *nested;
  state.nested_offset = static_cast<float>(offset->get<double>());
  return state;
}

// A matrix of places of 4 bits, row after row.
class PlacesTensor final : public GroupedTensor {
 public:
  PlacesTensor(Shape shape, const QuantState& state, std::span<const std::byte> places,
               std::span<const std::byte> absmax, const float (&table)[16], bool nf4,
               std::span<const std::byte> nested_absmax, std::span<const std::byte> nested_table,
               std::vector<std::span<const std::byte>> parts)
      : GroupedTensor(std::move(shape), Encoding(state, nf4), std::move(parts)),
        state_(state),
        places_(places),
        absmax_(absmax),
        nested_absmax_(nested_absmax),
        nested_table_(nested_table) {
    std::copy(std::begin(table), std::end(table), std::begin(table_));
  }

 protected:
  void ReadCodes(int64_t row, int64_t k_begin, int64_t k_end, int16_t* codes) const override {
    const int64_t begin = row * state_.inputs;
    for (int64_t i = begin + k_begin; i < begin + k_end; ++i) {
      const auto both = LoadElement<uint8_t>(places_, i / 2);
      *codes++ = i % 2 == 0 ? both >> 4 : both & 15;
    }
  }
  // Groups are kScaleGroup k, or one: then the number of a group is that of its k.
  float ScaleOf(int64_t row, int64_t group) const override {
    const int64_t block = (row * state_.inputs + group * shape().group) / state_.block;
    if (state_.nested_block == 0) return LoadElement<float>(absmax_, block);
    const float value = LoadElement<float>(nested_table_, LoadElement<uint8_t>(absmax_, block));
    return value * LoadElement<float>(nested_absmax_, block / state_.nested_block) +
           state_.nested_offset;
  }
  float ValueOf(int code, int) const override { return table_[code]; }

 private:
  // Another table than that of NF4 is read in fp32.
  static WeightEncoding Encoding(const QuantState& state, bool nf4) {
    if (!nf4 || state.block % kScaleGroup != 0) return {};
    return {.numbers = WeightEncoding::Numbers::kCodes,
            .values = WeightEncoding::Values::kNf4,
            .scales = WeightEncoding::Scales::kFp32};
  }

  const QuantState state_;
  const std::span<const std::byte> places_, absmax_, nested_absmax_, nested_table_;
  float table_[16];
};

absl::Status JoinPlaces(std::string_view layer, std::string_view suffix, LayerTensors& layers) {
  const Tensor* const description = layers.Find(layer, suffix);
  const auto state = ReadState(*description);
  if (!state.ok()) return state.status();
  const int64_t weights = state->rows * state->inputs;
  const auto size = [](int64_t count) { return static_cast<uint64_t>(count); };
  const int64_t blocks = (weights + state->block - 1) / state->block;
  const bool nested = state->nested_block != 0;
  // The bytes may be called numbers of any type (bnb_4bit_quant_storage).
  const Tensor* const places = layers.Find(layer, ".weight");
  if (places == nullptr) return InvalidArgument("tensor ", layer, ".weight is missing");
  if (places->data.size() != size((weights + 1) / 2)) {
    return InvalidArgument("tensor ", places->name, " has ", places->data.size(), " bytes, not ",
                           (weights + 1) / 2, " for ", state->rows, " x ", state->inputs,
                           " weights");
  }
  const auto absmax =
      layers.Get(layer, kAbsmax, {nested ? GgmlType::kU8 : GgmlType::kF32}, {size(blocks)});
  const auto map = layers.Get(layer, kMap, {GgmlType::kF32}, {16});
  for (const auto* tensor : {&absmax, &map}) {
    if (!tensor->ok()) return tensor->status();
  }
  const Tensor *nested_absmax = nullptr, *nested_map = nullptr;
  if (nested) {
    const auto most = layers.Get(layer, kNestedAbsmax, {GgmlType::kF32},
                                 {size((blocks + state->nested_block - 1) / state->nested_block)});
    const auto values = layers.Get(layer, kNestedMap, {GgmlType::kF32}, {256});
    for (const auto* tensor : {&most, &values}) {
      if (!tensor->ok()) return tensor->status();
    }
    nested_absmax = *most;
    nested_map = *values;
  }
  float table[16];
  for (int i = 0; i < 16; ++i) {
    table[i] = LoadElement<float>((*map)->data, i);
    if (!std::isfinite(table[i])) {
      return InvalidArgument("tensor ", (*map)->name, ": element ", i, " is no finite number");
    }
  }
  const bool nf4 = std::equal(std::begin(table), std::end(table), std::begin(kNf4Values));
  const bool whole = state->inputs % kScaleGroup == 0 && state->block % kScaleGroup == 0;
  const auto data = [](const Tensor* tensor) {
    return tensor == nullptr ? std::span<const std::byte>() : tensor->data;
  };
  layers.Replace(
      layer, {".weight", suffix, kAbsmax, kMap, kNestedAbsmax, kNestedMap},
      std::make_unique<PlacesTensor>(
          GroupedTensor::Shape{.format = suffix == kNf4State ? "NF4" : "FP4",
                               .rows = state->rows,
                               .inputs = state->inputs,
                               .group = whole ? kScaleGroup : 1,
                               .order = {}},
          *state, places->data, (*absmax)->data, table, nf4, data(nested_absmax), data(nested_map),
          DataOf({places, *absmax, *map, nested_absmax, nested_map, description})),
      state->rows, state->inputs);
  return absl::OkStatus();
}

absl::Status JoinInt8(std::string_view layer, LayerTensors& layers) {
  const Tensor* const found = layers.Find(layer, ".weight");
  if (found == nullptr) return InvalidArgument("tensor ", layer, ".weight is missing");
  const auto weight =
      layers.Get(layer, ".weight", {GgmlType::kI8}, {found->dims[1], found->dims[0]});
  if (!weight.ok()) return weight.status();
  const auto maxima = layers.Get(layer, ".SCB", {GgmlType::kF32}, {found->dims[1]});
  if (!maxima.ok()) return maxima.status();
  if (const Tensor* const format = layers.Find(layer, ".weight_format"); format != nullptr) {
    if (format->elements() != 1 || format->type != GgmlType::kU8 ||
        LoadElement<uint8_t>(format->data, 0) != 0) {
      return InvalidArgument("tensor ", format->name, " is not 0, which is the only order of rows");
    }
  }
  const auto rows = static_cast<int64_t>(found->dims[1]);
  const auto inputs = static_cast<int64_t>(found->dims[0]);
  layers.Replace(
      layer, {".weight", ".SCB", ".weight_format"},
      std::make_unique<ByteTensor>(
          GroupedTensor::Shape{
              .format = "LLM.int8", .rows = rows, .inputs = inputs, .group = inputs, .order = {}},
          (*weight)->data, NumberGrid{(*maxima)->data, GgmlType::kF32, 1, 0},
          DataOf({*weight, *maxima})),
      rows, inputs);
  return absl::OkStatus();
}

absl::Status JoinBitsAndBytes(const Json&, FolderTensors& folder) {
  LayerTensors layers(folder);
  for (const std::string_view suffix : {kNf4State, kFp4State}) {
    for (const std::string_view layer : layers.With(suffix)) {
      if (absl::Status status = JoinPlaces(layer, suffix, layers); !status.ok()) return status;
    }
  }
  for (const std::string_view layer : layers.With(kAbsmax)) {
    if (layers.Find(layer, kNf4State) != nullptr || layers.Find(layer, kFp4State) != nullptr) {
      continue;
    }
    return InvalidArgument("tensor ", layer, kNf4State, " (or ", kFp4State, ") is missing");
  }
  for (const std::string_view layer : layers.With(".weight")) {
    if (layers.Find(layer, ".weight")->type != GgmlType::kI8) continue;
    if (layers.Find(layer, ".SCB") == nullptr) {
      return InvalidArgument("tensor ", layer, ".SCB is missing");
    }
  }
  for (const std::string_view layer : layers.With(".SCB")) {
    if (absl::Status status = JoinInt8(layer, layers); !status.ok()) return status;
  }
  if (layers.replaced() == 0) {
    return InvalidArgument(
        "quantization_config: quant_method = 'bitsandbytes', but no tensor ends with .SCB, ",
        kNf4State, " or ", kFp4State);
  }
  layers.Finish();
  return absl::OkStatus();
}

}  // namespace

extern const QuantizationMethod kBitsAndBytesMethod = {"bitsandbytes", JoinBitsAndBytes};

}  // namespace flotilla::model
