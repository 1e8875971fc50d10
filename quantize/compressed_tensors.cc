#include "quantize/compressed_tensors.h"

#include <cstring>
#include <utility>

#include "common/types/text.h"

namespace flotilla::quantize {
namespace {

using model::GgmlType;

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Puts unsigned integers of `bits` bits into words, the lowest bits first.
class BitWriter {
 public:
  BitWriter(int bits, int64_t count)
      : bits_(bits), words_(static_cast<size_t>((count * bits + 31) / 32)) {}

  void Put(int value) {
    const size_t word = at_ / 32;
    const auto shift = static_cast<int>(at_ % 32);
    const uint64_t wide = static_cast<uint64_t>(value) << shift;
    words_[word] |= static_cast<uint32_t>(wide);
    if (shift + bits_ > 32) words_[word + 1] |= static_cast<uint32_t>(wide >> 32);
    at_ += static_cast<size_t>(bits_);
  }
  const std::vector<uint32_t>& words() const { return words_; }

 private:
  const int bits_;
  size_t at_ = 0;
  std::vector<uint32_t> words_;
};

}  // namespace

void CompressedLayers::AddTensor(std::string name, GgmlType type, std::vector<uint64_t> shape,
                                 std::vector<std::byte> bytes) {
  const std::vector<std::byte>& kept = bytes_.emplace_back(std::move(bytes));
  entries_.push_back(
      {.name = std::move(name), .type = type, .shape = std::move(shape), .data = kept});
}

void CompressedLayers::Add(std::string_view name, const IntegerMatrix& matrix) {
  const Grid& grid = matrix.grid;
  const auto rows = static_cast<uint64_t>(matrix.rows);
  const auto groups = static_cast<uint64_t>(matrix.groups());
  std::vector<uint32_t> codes;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    BitWriter writer(grid.bits, matrix.inputs);
    for (int64_t k = 0; k < matrix.inputs; ++k) {
      writer.Put(matrix.codes[static_cast<size_t>(row * matrix.inputs + k)] - grid.low());
    }
    codes.insert(codes.end(), writer.words().begin(), writer.words().end());
  }
  AddTensor(Cat(name, ".weight_packed"), GgmlType::kI32, {rows, codes.size() / rows},
            BytesOf(codes));
  AddScales(name, matrix);
  if (!grid.symmetric) {
    // [words of rows, groups]
    const auto words = static_cast<uint64_t>((matrix.rows * grid.bits + 31) / 32);
    std::vector<uint32_t> zeros(words * groups);
    for (uint64_t group = 0; group < groups; ++group) {
      BitWriter writer(grid.bits, matrix.rows);
      for (uint64_t row = 0; row < rows; ++row) {
        writer.Put(matrix.scales[row * groups + group].zero - grid.low());
      }
      for (uint64_t word = 0; word < words; ++word) {
        zeros[word * groups + group] = writer.words()[word];
      }
    }
    AddTensor(Cat(name, ".weight_zero_point"), GgmlType::kI32, {words, groups}, BytesOf(zeros));
  }
  AddTensor(Cat(name, ".weight_shape"), GgmlType::kI64, {2},
            BytesOf(std::vector<int64_t>{matrix.rows, matrix.inputs}));
}

void CompressedLayers::AddScales(std::string_view name, const IntegerMatrix& matrix) {
  const ScaleType type = matrix.grid.scales;
  std::vector<uint16_t> scales;
  for (const GroupScale& group : matrix.scales) scales.push_back(BitsOf(group.scale, type));
  AddTensor(Cat(name, ".weight_scale"), type == ScaleType::kBf16 ? GgmlType::kBF16 : GgmlType::kF16,
            {static_cast<uint64_t>(matrix.rows), static_cast<uint64_t>(matrix.groups())},
            BytesOf(scales));
}

void CompressedLayers::AddBytes(std::string_view name, const IntegerMatrix& matrix) {
  AddTensor(Cat(name, ".weight"), GgmlType::kI8,
            {static_cast<uint64_t>(matrix.rows), static_cast<uint64_t>(matrix.inputs)},
            BytesOf(matrix.codes));
  AddScales(name, matrix);
}

model::Json CompressedConfig(const Grid& grid, int64_t group,
                             const std::vector<std::string>& ignored, bool int8_activations) {
  const std::string format = int8_activations ? "int-quantized" : "pack-quantized";
  const model::Json activations = {{"num_bits", 8},        {"type", "int"},   {"symmetric", true},
                                   {"strategy", "token"},  {"dynamic", true}, {"observer", nullptr},
                                   {"group_size", nullptr}};
  model::Json weights = {{"num_bits", grid.bits},
                         {"type", "int"},
                         {"symmetric", grid.symmetric},
                         {"strategy", group == 0 ? "channel" : "group"},
                         {"dynamic", false},
                         {"observer", "minmax"}};
  weights["group_size"] = group == 0 ? model::Json() : model::Json(group);
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"ignore", ignored},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", std::move(weights)},
              {"input_activations", int8_activations ? activations : model::Json()},
              {"output_activations", nullptr},
              {"format", format}}}}}};
}

absl::StatusOr<std::unique_ptr<model::FolderTensors>> ReadCompressed(const CompressedLayers& layers,
                                                                     const model::Json& config) {
  auto folder = std::make_unique<model::FolderTensors>();
  for (const model::SafetensorsEntry& entry : layers.entries()) {
    model::Tensor tensor{.name = entry.name,
                         .rank = static_cast<uint32_t>(entry.shape.size()),
                         .dims = {1, 1, 1, 1},
                         .type = entry.type,
                         .data = entry.data};
    for (size_t axis = 0; axis < entry.shape.size(); ++axis) {
      tensor.dims[axis] = entry.shape[entry.shape.size() - 1 - axis];
    }
    folder->tensors.push_back(tensor);
  }
  const model::Json whole = {{"quantization_config", config}};
  const auto method = model::FindQuantization(whole);
  if (!method.ok()) return method.status();
  absl::Status status = method->method->join(*method->settings, *folder);
  if (!status.ok()) return status;
  return folder;
}

}  // namespace flotilla::quantize
