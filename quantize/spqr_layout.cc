#include "quantize/spqr_layout.h"

#include <algorithm>
#include <utility>

#include "common/types/text.h"

namespace flotilla::quantize {
namespace {

using model::GgmlType;

constexpr std::string_view kSuffixes[] = {".dense_weights", ".row_offsets", ".col_vals",
                                          ".in_perm"};
constexpr int64_t kTile = SpqrMatrix::kGroup;

// A word for each row of each tile of 16 x 16. Rows that fill the last tile up have what it has in
// common, too.
std::vector<uint64_t> DenseWords(const SpqrMatrix& matrix) {
  std::vector<uint64_t> words;
  for (int64_t first = 0; first < matrix.rows; first += kTile) {
    for (int64_t group = 0; group < matrix.groups(); ++group) {
      const auto scale = [&](int64_t row) -> const CodedScale& {
        return matrix.scales[static_cast<size_t>(row * matrix.groups() + group)];
      };
      const CodedScale& common = scale(first);
      const uint64_t numbers = uint64_t{common.scale_step} | uint64_t{common.zero_step} << 16 |
                               uint64_t{common.scale_zero} << 32 | uint64_t{common.zero_zero} << 48;
      for (int64_t place = 0; place < kTile; ++place) {
        uint64_t word = (numbers >> (place / 2 * 8) & 0xFF) << 54;
        if (const int64_t row = first + place; row < matrix.rows) {
          word |= uint64_t{scale(row).scale_code} | uint64_t{scale(row).zero_code} << 3;
          for (int64_t j = 0; j < kTile; ++j) {
            const int8_t code =
                matrix.codes[static_cast<size_t>(row * matrix.inputs + group * kTile + j)];
            word |= static_cast<uint64_t>(code) << (6 + SpqrMatrix::kBits * j);
          }
        }
        words.push_back(word);
      }
    }
  }
  return words;
}

}  // namespace

void AddSpqr(std::string_view name, const SpqrMatrix& matrix, CompressedLayers& layers) {
  const auto add = [&](std::string_view suffix, GgmlType type, const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    layers.AddTensor(Cat(name, suffix), type, {values.size()}, {bytes.begin(), bytes.end()});
  };
  std::vector<int32_t> offsets = {0};
  std::vector<uint32_t> outliers;
  for (const auto& row : matrix.outliers) {
    for (const SpqrMatrix::Outlier& outlier : row) {
      outliers.push_back(uint32_t{outlier.value} << 16 | static_cast<uint32_t>(outlier.input));
    }
    offsets.push_back(static_cast<int32_t>(outliers.size()));
  }
  add(kSuffixes[0], GgmlType::kI64, DenseWords(matrix));
  add(kSuffixes[1], GgmlType::kI32, offsets);
  add(kSuffixes[2], GgmlType::kI32, outliers);
  add(kSuffixes[3], GgmlType::kI32, std::vector<int32_t>());
}

bool IsOfSpqr(std::string_view tensor) {
  return std::ranges::any_of(kSuffixes,
                             [&](std::string_view suffix) { return tensor.ends_with(suffix); });
}

model::Json SpqrConfig(const std::map<std::string, uint64_t>& sizes,
                       const std::vector<std::string>& ignored) {
  model::Json shapes = model::Json::object(), stay = model::Json::array();
  for (const auto& [tensor, size] : sizes) shapes[tensor + ".shape"] = size;
  for (const std::string& layer : ignored) stay.push_back(layer + ".weight");
  return {{"quant_method", "spqr"},
          {"bits", SpqrMatrix::kBits},
          {"beta1", kTile},
          {"beta2", kTile},
          {"modules_to_not_convert", std::move(stay)},
          {"shapes", std::move(shapes)}};
}

}  // namespace flotilla::quantize
