// SpQR (Dettmers et al., 2023) as the package spqr-quant writes it (inference.py): of a layer of N
// outputs and K inputs, in codes of 3 bits,
//   dense_weights I64 [tiles of 16 outputs, tiles of 16 inputs, 16]  a word for each row of a tile
//   row_offsets   I32 [N + 1]  where the outliers of each row begin, and their number
//   col_vals      I32 [outliers]  a value in fp16 in the upper half, its column in the lower one
//   in_perm       I32 [K / 2]  two inputs in a word, the first one in the lower half: column i has
//                              the weights of input in_perm[i]. It may be empty
// Of a word bits 0-2 are the code of the scale, 3-5 that of the zero, 6-53 the codes of the
// weights, and 54-61 a byte of what the tile has in common, four numbers in fp16: byte j is in the
// words 2 j and 2 j + 1. The numbers are the step of scales, the step of zeros, the zero of scales,
// and the zero of zeros (CodedScale). weight = scale (code - zero) + outlier.
//
// Outliers of 0 are none. Where row_offsets has a list for each tile of 16 outputs instead (PTCSR),
// a layer looks like one of fewer rows and more inputs, and is refused for its shape.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/hash/hash.h"
#include "common/types/text.h"
#include "model/ggml_type.h"
#include "model/huggingface/quantization/grouped_tensor.h"
#include "model/huggingface/quantization/layer_tensors.h"

namespace flotilla::model {
namespace {

constexpr std::string_view kDense = ".dense_weights", kOffsets = ".row_offsets",
                           kOutliers = ".col_vals", kPermutation = ".in_perm";
constexpr int kSpqrBits = 3;
constexpr int64_t kTile = kTileOutputs;  // inputs of a tile, too
static_assert(kTile == kFactorGroup);
constexpr int64_t kMostInputs = 1 << 16;  // a column has 16 bits

int64_t TilesOf(int64_t size) { return (size + kTile - 1) / kTile; }

// The places where a layer has its numbers, checked.
struct Parts {
  std::span<const std::byte> words, offsets, outliers;
  int64_t outlier_count = 0;  // that are not 0
  // The columns of the inputs, and the inputs of the columns; empty: they are the same.
  std::vector<int32_t> columns, input_of;
  std::vector<std::span<const std::byte>> data;
};

uint16_t ValueOf(uint32_t outlier) { return static_cast<uint16_t>(outlier >> 16); }
int32_t ColumnOf(uint32_t outlier) { return static_cast<int32_t>(outlier & 0xFFFF); }

class SpqrTensor final : public CompositeTensor {
 public:
  SpqrTensor(int64_t rows, int64_t inputs, Parts parts)
      : rows_(rows), inputs_(inputs), at_(std::move(parts)), encoding_(EncodingFor(inputs, at_)) {}

  std::string_view format() const override {
    return encoding_.numbers == WeightEncoding::Numbers::kCodes ? "SpQR" : "SpQR (fp32)";
  }
  const WeightEncoding& encoding() const override { return encoding_; }
  int64_t rows() const override { return rows_; }
  std::span<const std::span<const std::byte>> parts() const override { return at_.data; }
  int64_t outliers() const override { return at_.outlier_count; }

  void Read(int64_t row, int64_t k_begin, int64_t k_end, WeightRow& out) const override {
    const int64_t window = k_begin / kPanelWindow * kPanelWindow;
    const auto at = static_cast<int>(k_begin - window), end = static_cast<int>(k_end - window);
    std::fill(out.outliers + at, out.outliers + end, uint16_t{0});
    const int64_t last = LoadElement<int32_t>(at_.offsets, row + 1);
    for (int64_t i = LoadElement<int32_t>(at_.offsets, row); i < last; ++i) {
      const auto outlier = LoadElement<uint32_t>(at_.outliers, i);
      const int32_t column = ColumnOf(outlier);
      const int64_t k = at_.input_of.empty() ? column : at_.input_of[static_cast<size_t>(column)];
      // One of 0 is none, and does not take the place of another.
      if (k < k_begin || k >= k_end || (ValueOf(outlier) & 0x7FFF) == 0) continue;
      out.outliers[k - window] = ValueOf(outlier);
    }
    const int span = encoding_ == WeightEncoding{} ? 1 : encoding_.scale_group;
    int64_t tile = -1;
    CodedScale scale{};
    uint64_t word = 0;
    for (int k = at; k < end; ++k) {
      const int64_t input = window + k;
      const int64_t column = at_.columns.empty() ? input : at_.columns[static_cast<size_t>(input)];
      if (column / kTile != tile) {
        tile = column / kTile;
        word = WordAt(row, tile);
        scale = ScaleAt(row, tile, word);
      }
      out.codes[k] = static_cast<int8_t>(word >> (6 + kSpqrBits * (column % kTile)) & 7);
      out.coded_scales[k / span] = scale;
      if (encoding_.groups > 0) out.groups[k] = static_cast<uint16_t>(tile);
    }
    if (encoding_ == WeightEncoding{}) Decode(at, end, out);
  }

 private:
  // Codes, or fp32 where rows have no whole blocks.
  static WeightEncoding EncodingFor(int64_t inputs, const Parts& parts) {
    if (inputs % kScaleGroup != 0) return {};
    WeightEncoding encoding{.numbers = WeightEncoding::Numbers::kCodes,
                            .scales = WeightEncoding::Scales::kCoded,
                            .scale_group = kFactorGroup,
                            .low = 0,
                            .high = (1 << kSpqrBits) - 1,
                            .has_outliers = true};
    if (parts.columns.empty()) return encoding;
    std::vector<int32_t> groups;
    for (const int32_t column : parts.columns) {
      groups.push_back(column / static_cast<int32_t>(kTile));
    }
    encoding.scale_group = 1;
    encoding.groups = static_cast<int32_t>(TilesOf(inputs));
    encoding.order = absl::HashOf(groups);
    return encoding;
  }

  int64_t TileAt(int64_t row, int64_t tile) const {
    return (row / kTile * TilesOf(inputs_) + tile) * kTile;
  }
  uint64_t WordAt(int64_t row, int64_t tile) const {
    return LoadElement<uint64_t>(at_.words, TileAt(row, tile) + row % kTile);
  }
  CodedScale ScaleAt(int64_t row, int64_t tile, uint64_t word) const {
    const int64_t first = TileAt(row, tile);
    uint64_t numbers = 0;
    for (int64_t i = 0; i < kTile; ++i) {
      numbers |= (LoadElement<uint64_t>(at_.words, first + i) >> 54 & 0xFF) << (i / 2 * 8);
    }
    const auto half = [&](int i) { return static_cast<uint16_t>(numbers >> (16 * i)); };
    return {.scale_code = static_cast<uint8_t>(word & 7),
            .zero_code = static_cast<uint8_t>(word >> 3 & 7),
            .scale_step = half(0),
            .zero_step = half(1),
            .scale_zero = half(2),
            .zero_zero = half(3)};
  }

  // Puts the weights in the place of codes, each of which has a scale of its own here.
  static void Decode(int begin, int end, WeightRow& out) {
    for (int k = begin; k < end; ++k) {
      const CodedScale& coded = out.coded_scales[k];
      const float scale = HalfToFloat(coded.scale_step) *
                          (static_cast<float>(coded.scale_code) - HalfToFloat(coded.scale_zero));
      const float zero = HalfToFloat(coded.zero_step) *
                         (static_cast<float>(coded.zero_code) - HalfToFloat(coded.zero_zero));
      float weight = scale * (static_cast<float>(out.codes[k]) - zero);
      if ((out.outliers[k] & 0x7FFF) != 0) weight += HalfToFloat(out.outliers[k]);
      std::memcpy(out.numbers + static_cast<size_t>(k) * sizeof weight, &weight, sizeof weight);
    }
  }

  const int64_t rows_, inputs_;
  const Parts at_;
  const WeightEncoding encoding_;
};

// A tensor of one axis, perhaps an empty one, which may be of any type then.
absl::StatusOr<const Tensor*> GetList(std::string_view layer, std::string_view suffix,
                                      GgmlType type, const LayerTensors& layers) {
  const Tensor* const tensor = layers.Find(layer, suffix);
  if (tensor == nullptr) return InvalidArgument("tensor ", layer, suffix, " is missing");
  if (tensor->rank != 1) {
    return InvalidArgument("tensor ", tensor->name, " is ", HfShape(*tensor), ", not a list");
  }
  if (tensor->type != type && tensor->elements() != 0) {
    return InvalidArgument("tensor ", tensor->name, " is ", TypeName(*tensor), ", not ",
                           GgmlTypeName(type));
  }
  return tensor;
}

// Reads the order of inputs that in_perm says.
absl::Status ReadInputs(const Tensor& order, const Tensor& dense, int64_t inputs, Parts& parts) {
  if (order.elements() == 0) return absl::OkStatus();
  if (static_cast<int64_t>(order.elements()) * 2 != inputs) {
    return InvalidArgument("tensor ", order.name, " has ", order.elements() * 2, " inputs, but ",
                           dense.name, " has ", inputs);
  }
  std::vector<int32_t> columns(static_cast<size_t>(inputs), -1), input_of;
  for (int64_t i = 0; i < inputs; ++i) {
    const auto input = static_cast<int32_t>(LoadElement<uint16_t>(order.data, i));
    if (input >= inputs) {
      return InvalidArgument("tensor ", order.name, ": place ", i, " is ", input,
                             ", but there are ", inputs, " inputs");
    }
    if (std::exchange(columns[static_cast<size_t>(input)], static_cast<int32_t>(i)) >= 0) {
      return InvalidArgument("tensor ", order.name, ": place ", i, " is ", input,
                             ", which another place is already");
    }
    input_of.push_back(input);
  }
  if (std::ranges::is_sorted(input_of)) return absl::OkStatus();  // all are where they were
  parts.columns = std::move(columns);
  parts.input_of = std::move(input_of);
  return absl::OkStatus();
}

// Checks what row_offsets and col_vals say, and counts the outliers.
absl::Status CheckOutliers(const Tensor& offsets, const Tensor& values, int64_t rows,
                           int64_t inputs, Parts& parts) {
  const auto count = static_cast<int64_t>(values.elements());
  const auto offset = [&](int64_t i) { return int64_t{LoadElement<int32_t>(offsets.data, i)}; };
  for (int64_t i = 0; i <= rows; ++i) {
    const int64_t least = i == 0 ? 0 : offset(i - 1);
    if (offset(i) >= least && offset(i) <= count && (i > 0 || offset(i) == 0) &&
        (i < rows || offset(i) == count)) {
      continue;
    }
    return InvalidArgument("tensor ", offsets.name, ": element ", i, " is ", offset(i), " after ",
                           least, ", but ", values.name, " has ", count, " outliers");
  }
  // Those of 0 count, too: each takes time whenever a part of its row is read.
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t of_row = offset(row + 1) - offset(row);
    if (of_row <= inputs) continue;
    return InvalidArgument("tensor ", offsets.name, ": row ", row, " has ", of_row,
                           " outliers, but ", inputs, " inputs");
  }
  std::vector<int64_t> last(static_cast<size_t>(inputs), -1);  // the last row with this column
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = offset(row); i < offset(row + 1); ++i) {
      const auto outlier = LoadElement<uint32_t>(values.data, i);
      const uint16_t value = ValueOf(outlier);
      const int32_t column = ColumnOf(outlier);
      const auto wrong = [&](const auto&... what) {
        return InvalidArgument("tensor ", values.name, ": element ", i, " of row ", row, " is ",
                               what...);
      };
      if (column >= inputs) return wrong("of column ", column, ", but there are ", inputs);
      if ((value & 0x7C00) == 0x7C00) {
        return wrong((value & 0x3FF) == 0 ? "infinite" : "no number");
      }
      if ((value & 0x7FFF) == 0) continue;
      if (std::exchange(last[static_cast<size_t>(column)], row) == row) {
        return wrong("of column ", column, ", which has another outlier");
      }
      ++parts.outlier_count;
    }
  }
  return absl::OkStatus();
}

// What the key `shapes` says of the tensor, if it does.
absl::Status CheckShape(const Json* shapes, const Tensor& tensor) {
  const std::string key = Cat(tensor.name, ".shape");
  const Json* const said = Member(shapes, key);
  if (said == nullptr || (said->is_number_integer() && *said == tensor.elements())) {
    return absl::OkStatus();
  }
  return InvalidArgument("quantization_config: ", key, " = ", said->dump().substr(0, 40),
                         ", but the tensor is ", HfShape(tensor));
}

absl::Status JoinLayer(std::string_view layer, const Json* shapes, LayerTensors& layers) {
  const auto dense = GetList(layer, kDense, GgmlType::kI64, layers);
  const auto offsets = GetList(layer, kOffsets, GgmlType::kI32, layers);
  const auto values = GetList(layer, kOutliers, GgmlType::kI32, layers);
  for (const auto* tensor : {&dense, &offsets, &values}) {
    if (!tensor->ok()) return tensor->status();
  }
  const Tensor* order = nullptr;
  if (layers.Find(layer, kPermutation) != nullptr) {
    const auto found = GetList(layer, kPermutation, GgmlType::kI32, layers);
    if (!found.ok()) return found.status();
    order = *found;
  }
  for (const Tensor* tensor : {*dense, *offsets, *values, order}) {
    if (tensor == nullptr) continue;
    if (absl::Status status = CheckShape(shapes, *tensor); !status.ok()) return status;
  }
  if ((*offsets)->elements() < 2 || (*offsets)->elements() > INT32_MAX) {
    return InvalidArgument("tensor ", (*offsets)->name, " is ", HfShape(**offsets),
                           ", which is that of no rows");
  }
  const auto rows = static_cast<int64_t>((*offsets)->elements()) - 1;
  const auto words = static_cast<int64_t>((*dense)->elements());
  const int64_t of_column = TilesOf(rows) * kTile;
  const int64_t inputs = words / of_column * kTile;
  if (words % of_column != 0 || inputs == 0 || inputs > kMostInputs) {
    return InvalidArgument("tensor ", (*dense)->name, " is ", HfShape(**dense), ", but ", rows,
                           " rows, which ", (*offsets)->name, " has, take a multiple of ",
                           of_column, " words, and at most ", kMostInputs / kTile, " times that");
  }
  Parts parts{.words = (*dense)->data,
              .offsets = (*offsets)->data,
              .outliers = (*values)->data,
              .columns = {},
              .input_of = {},
              .data = DataOf({*dense, *offsets, *values, order})};
  absl::Status status;
  if (order != nullptr) status = ReadInputs(*order, **dense, inputs, parts);
  if (status.ok()) status = CheckOutliers(**offsets, **values, rows, inputs, parts);
  if (!status.ok()) return status;
  layers.Replace(layer, {kDense, kOffsets, kOutliers, kPermutation},
                 std::make_unique<SpqrTensor>(rows, inputs, std::move(parts)), rows, inputs);
  return absl::OkStatus();
}

absl::Status JoinSpqr(const Json& quantization, FolderTensors& folder) {
  for (const auto& [key, served] :
       {std::pair{"bits", int64_t{kSpqrBits}}, {"beta1", kTile}, {"beta2", kTile}}) {
    const auto number = WholeNumber(quantization, key, served);
    if (!number.ok()) return number.status();
    if (*number == served) continue;
    return InvalidArgument("quantization_config: ", key, " = ", *number,
                           " is not supported; supported: ", served);
  }
  const Json* const shapes = Member(&quantization, "shapes");
  if (shapes != nullptr && !shapes->is_object() && !shapes->is_null()) {
    return InvalidArgument("quantization_config: shapes is no object");
  }
  LayerTensors layers(folder);
  for (const std::string_view layer : layers.With(kDense)) {
    if (absl::Status status = JoinLayer(layer, shapes, layers); !status.ok()) return status;
  }
  // What is left of a layer without codes has no meaning.
  if (layers.replaced() == 0) return NoSuchTensors("spqr", kDense);
  layers.Finish();
  return absl::OkStatus();
}

}  // namespace

extern const QuantizationMethod kSpqrMethod = {"spqr", JoinSpqr};

}  // namespace flotilla::model
