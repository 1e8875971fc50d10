// Packing: every format of files, by way of its packed kind, keeps its weights.
#include "kernels/packed_matrix.h"

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "kernels/packing/kinds.h"
#include "model/ggml_type.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

using model::GgmlType;

template <class... All>
constexpr int Count(KindList<All...>) {
  return sizeof...(All);
}

TEST(PackedMatrixTest, EveryKindPacksAFormat) {
  std::set<int> kinds;
  for (const Format& format : AllFormats()) {
    const auto kind = KindFor(format.encoding);
    ASSERT_TRUE(kind.ok()) << format.name << ": " << kind.status();
    kinds.insert(static_cast<int>(*kind));
  }
  EXPECT_EQ(kinds.size(), Count(Kinds{}));
}

TEST(PackedMatrixTest, TakesTheBytesOfItsKind) {
  const auto bits = [](std::string_view format) {
    const auto matrix = PackedMatrix::Create(FormatNamed(format).encoding, 64, 256);
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    const double bits = 8.0 * static_cast<double>(matrix->bytes()) / (64 * 256);
    EXPECT_EQ(*PackedBits(FormatNamed(format).encoding, 256), bits) << format;
    return bits;
  };
  EXPECT_EQ(bits("F32"), 32);
  EXPECT_EQ(bits("F16"), 16);
  EXPECT_EQ(bits("BF16"), 16);
  EXPECT_EQ(bits("Q4_0"), 5);
  EXPECT_EQ(bits("Q4_1"), 5);
  EXPECT_EQ(bits("Q6_K"), 7);
  EXPECT_EQ(bits("Q8_0"), 8.5);
  EXPECT_EQ(bits("int4_bf16"), 5);
  EXPECT_EQ(bits("int4_zero_fp16"), 5);
  EXPECT_EQ(bits("int3_zero_fp16"), 4);
  EXPECT_EQ(bits("int2_zero_bf16"), 3);
  EXPECT_EQ(bits("int8_fp32"), 9);
  EXPECT_EQ(bits("int8_zero_bf16"), 9);
  EXPECT_EQ(bits("nvfp4_fp32"), 6);
  EXPECT_EQ(bits("nf4"), 5);
  EXPECT_EQ(bits("fp8"), 8.25);
  EXPECT_EQ(bits("w8a8_bf16"), 8.0 + 64.0 / 256);
  EXPECT_EQ(bits("int4_ordered_fp16"), 4.5 + 32.0 * (1 + 7) / 256);
  EXPECT_EQ(bits("int8_ordered_bf16"), 8.5 + 32.0 * (1 + 7) / 256);
}

// Outliers take 32 bits each, and 64 for each record that say where they are.
TEST(PackedMatrixTest, TakesTheBytesOfItsOutliers) {
  testing::Random random(4);
  for (const auto& [name, bits] :
       {std::pair{"spqr", 4.5}, {"spqr_ordered", 4.5 + 64.0 * (1 + 7) / 256}}) {
    const RandomWeights weights(random, FormatNamed(name).encoding, 64, 256);
    const PackedMatrix matrix = Pack(weights);
    EXPECT_EQ(8.0 * static_cast<double>(matrix.panel_bytes()) / (64 * 256), bits);
    EXPECT_EQ(*PackedBits(weights.encoding, 256), bits + 64.0 / 1024);
    int64_t outliers = 0;
    for (const WeightRow& row : weights.rows) {
      outliers += std::count_if(std::begin(row.outliers), std::end(row.outliers),
                                [](uint16_t outlier) { return outlier != 0; });
    }
    EXPECT_GT(outliers, 100);
    constexpr int kBegins = 2 * (2 * 8 + 1);  // of two panels
    EXPECT_EQ(matrix.bytes(), matrix.panel_bytes() + (kBegins + outliers) * 4);
  }
}

// A panel may have columns of eight tiles. A ninth is refused, and columns that are not packed stay
// zero.
TEST(PackedMatrixTest, TilesOfOneRecord) {
  testing::Random random(6);
  const RandomWeights weights(random, FormatNamed("spqr").encoding, 9 * kTileOutputs, 32);
  auto matrix = PackedMatrix::Create(weights.encoding, 32, 32);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const auto panel = std::make_unique<WeightPanel>();
  panel->encoding = weights.encoding;
  panel->outputs = 1;
  panel->begin = 0;
  panel->end = 32;
  float column[32];
  for (int tile = 0; tile < 9; ++tile) {
    panel->rows[0] = weights.row(tile * kTileOutputs, 0);
    EXPECT_EQ(matrix->PackPanel(*panel, tile * 3, 0).ok(), tile < 8) << tile;
  }
  for (int c = 0; c < 32; ++c) {
    const bool packed = c % 3 == 0 && c < 24;
    matrix->DequantizeColumn(c, column);
    for (int i = 0; i < 32; ++i) {
      if (c == 24) continue;  // it was refused
      EXPECT_EQ(column[i], packed ? static_cast<float>(weights.At(c / 3 * kTileOutputs, i)) : 0.0f);
    }
  }
}

TEST(PackedMatrixTest, DequantizesExactlyAsTheEncodingSays) {
  testing::Random random(11);
  for (const Format& format : AllFormats()) {
    SCOPED_TRACE(format.name);
    const RandomWeights weights(random, format.encoding, 37, 288);
    const PackedMatrix matrix = Pack(weights);
    std::vector<float> column(weights.k);
    for (int c = 0; c < weights.columns; ++c) {
      matrix.DequantizeColumn(c, absl::MakeSpan(column));
      for (int i = 0; i < weights.k; ++i) {
        EXPECT_EQ(column[i], static_cast<float>(weights.At(c, i)));
      }
    }
  }
}

// From blocks of a file to a column of the matrix.
TEST(PackedMatrixTest, KeepsTheWeightsOfEveryType) {
  for (const GgmlType format : AllTypes()) {
    SCOPED_TRACE(model::GgmlTypeName(format));
    const testing::WeightCase expected = testing::ReadWeightCase(format);
    const model::Tensor tensor = expected.Matrix(format, 256);
    // The second half of the rows, too: a shard may begin inside a block.
    for (const int begin : {0, 128}) {
      const int k = 256 - begin;
      auto matrix = PackedMatrix::Create(model::EncodingOf(format), 2, k);
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      const auto panel = std::make_unique<WeightPanel>();
      const std::vector<int64_t> rows = {1, 0};
      ASSERT_TRUE(model::ReadPanel(tensor, rows, begin, 256, matrix->encoding(), *panel).ok());
      ASSERT_TRUE(matrix->PackPanel(*panel, 0, 0).ok());
      std::vector<float> column(k);
      for (int c = 0; c < 2; ++c) {
        matrix->DequantizeColumn(c, absl::MakeSpan(column));
        for (int i = 0; i < k; ++i) {
          ASSERT_EQ(column[i], expected.weights[rows[c] * 256 + begin + i]);
        }
      }
    }
  }
}

// docs/formats.md states the bits per weight of each format, in the file and in memory.
TEST(PackedMatrixTest, TheFormatsPageStatesTheBits) {
  std::ifstream page("docs/formats.md");
  ASSERT_TRUE(page) << "run the test from the source folder";
  std::map<std::string, std::pair<std::string, std::string>> stated;
  for (std::string line; std::getline(page, line) && line != "## Speed";) {
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() < 5 || !line.starts_with("| `")) continue;
    stated[absl::StrReplaceAll(cells[0], {{"| ", ""}, {"`", ""}})] = {cells[1], cells[2]};
  }
  constexpr int kColumns = 64, kDepth = 4096;
  const auto bits = [](double value) {
    std::string text = absl::StrFormat("%.2f", value);
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
    return text;
  };
  for (const GgmlType format : AllTypes()) {
    const std::string name(model::GgmlTypeName(format));
    const model::GgmlTypeInfo& info = *model::FindGgmlType(static_cast<uint32_t>(format));
    const auto matrix = PackedMatrix::Create(model::EncodingOf(format), kColumns, kDepth);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_TRUE(stated.contains(name)) << name;
    EXPECT_EQ(stated[name].first, bits(8.0 * static_cast<double>(info.block_bytes) /
                                       static_cast<double>(info.block_elements)))
        << name;
    EXPECT_EQ(stated[name].second,
              bits(8.0 * static_cast<double>(matrix->bytes()) / (kColumns * kDepth)))
        << name;
  }
  EXPECT_EQ(stated.size(), AllTypes().size());
}

// The weight of the least code is kept in fp16.
TEST(PackedMatrixTest, EveryScaleOfQ4AndQ5IsExactOrRefused) {
  testing::Random random(1);
  for (const auto& [type, low] : {std::pair{GgmlType::kQ4_0, -8}, {GgmlType::kQ5_0, -16}}) {
    RandomWeights weights(random, model::EncodingOf(type), 1, 32);
    weights.rows[0].codes[0] = static_cast<int8_t>(low);
    for (int half = 0; half < 0x10000; ++half) {
      weights.rows[0].scales[0] = static_cast<uint16_t>(half);
      auto matrix = PackedMatrix::Create(weights.encoding, 1, 32);
      ASSERT_TRUE(matrix.ok());
      const absl::Status status = weights.PackInto(*matrix, 0, 32);
      const float d = HalfToFloat(static_cast<uint16_t>(half)), least = static_cast<float>(low) * d;
      ASSERT_EQ(status.ok(), std::fabs(least) < 65536.0f) << half;  // false for NaN
      if (!status.ok()) continue;
      float column[32];
      matrix->DequantizeColumn(0, column);
      ASSERT_EQ(column[0], least) << half;
    }
  }
}

// A scale and a zero share a word: every scale of 16 bits is exact beside every zero.
TEST(PackedMatrixTest, EveryScaleIsExactBesideAZero) {
  testing::Random random(1);
  for (const std::string_view name :
       {"int4_zero_fp16", "int4_zero_bf16", "int4_bf16", "int8_zero_fp16", "int8_zero_bf16",
        "int3_zero_fp16", "int3_zero_bf16", "int2_zero_fp16", "int2_zero_bf16"}) {
    RandomWeights weights(random, FormatNamed(name).encoding, 1, 32);
    for (int half = 0; half < 0x10000; ++half) {
      weights.rows[0].scales[0] = static_cast<uint16_t>(half);
      weights.rows[0].zeros[0] =
          static_cast<int16_t>(random.Int(weights.encoding.low, weights.encoding.high + 1));
      const double weight = weights.At(0, 0);
      if (!std::isfinite(weight)) continue;  // such scales are refused before
      const PackedMatrix matrix = Pack(weights);
      float column[32];
      matrix.DequantizeColumn(0, column);
      ASSERT_EQ(column[0], static_cast<float>(weight)) << name << " " << half;
    }
  }
  for (const std::string_view name :
       {"int4_zero_fp16", "int8_zero_fp16", "int3_zero_fp16", "int2_zero_fp16"}) {
    RandomWeights weights(random, FormatNamed(name).encoding, 1, 32);
    for (const int past : {weights.encoding.low - 1, weights.encoding.high + 2}) {
      weights.rows[0].zeros[0] = static_cast<int16_t>(past);
      auto matrix = PackedMatrix::Create(weights.encoding, 1, 32);
      ASSERT_TRUE(matrix.ok());
      EXPECT_FALSE(weights.PackInto(*matrix, 0, 32).ok()) << name << " " << past;
    }
  }
}

// Windows are those of the file's rows, wherever a matrix has their blocks.
TEST(PackedMatrixTest, WindowsAreThoseOfTheFile) {
  testing::Random random(3);
  for (const std::string_view name : {"Q4_K", "Q6_K", "IQ4_XS", "fp8"}) {
    const RandomWeights weights(random, FormatNamed(name).encoding, 3, 512);
    const std::vector<int32_t> file_blocks = {3, 4, 5, 11, 0};
    auto matrix = PackedMatrix::Create(weights.encoding, 3, 160, {}, file_blocks);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    for (int b = 0; b < 5; ++b) {
      auto panel = std::make_unique<WeightPanel>();
      panel->encoding = weights.encoding;
      panel->outputs = 3;
      panel->begin = file_blocks[b] * kBlockK % kPanelWindow;
      panel->end = panel->begin + kBlockK;
      for (int c = 0; c < 3; ++c) panel->rows[c] = weights.row(c, file_blocks[b] * kBlockK);
      ASSERT_TRUE(matrix->PackPanel(*panel, 0, b * kBlockK).ok());
    }
    float column[160];
    for (int c = 0; c < 3; ++c) {
      matrix->DequantizeColumn(c, column);
      for (int i = 0; i < 160; ++i) {
        const int k = file_blocks[i / kBlockK] * kBlockK + i % kBlockK;
        ASSERT_EQ(column[i], static_cast<float>(weights.At(c, k))) << name << " " << c << " " << i;
      }
    }
  }
}

TEST(PackedMatrixTest, PackingInPiecesEqualsPackingAtOnce) {
  testing::Random random(12);
  for (const Format& format : AllFormats()) {
    SCOPED_TRACE(format.name);
    const RandomWeights weights(random, format.encoding, 100, 320);
    const PackedMatrix whole = Pack(weights);
    auto pieces = PackedMatrix::Create(weights.encoding, weights.columns, weights.k);
    ASSERT_TRUE(pieces.ok());
    // The pieces are of any size, and cross the panels of the matrix.
    for (const auto& [column, count] : {std::pair{64, 36}, {0, 5}, {5, 59}}) {
      for (const auto& [begin, end] : {std::pair{256, 320}, {0, 32}, {32, 256}}) {
        for (int first = column; first < column + count; first += 20) {
          auto panel = std::make_unique<WeightPanel>();
          panel->encoding = weights.encoding;
          panel->outputs = std::min(20, column + count - first);
          panel->begin = begin % kPanelWindow;
          panel->end = panel->begin + end - begin;
          for (int c = 0; c < panel->outputs; ++c) panel->rows[c] = weights.row(first + c, begin);
          ASSERT_TRUE(pieces->PackPanel(*panel, first, begin).ok());
        }
      }
    }
    ASSERT_EQ(whole.bytes(), pieces->bytes());
    EXPECT_EQ(0, std::memcmp(whole.view().panels_begin, pieces->view().panels_begin,
                             whole.panel_bytes()));
    std::vector<float> expected(weights.k), column(weights.k);
    for (int c = 0; c < weights.columns; ++c) {
      whole.DequantizeColumn(c, absl::MakeSpan(expected));
      pieces->DequantizeColumn(c, absl::MakeSpan(column));
      ASSERT_EQ(expected, column);
    }
  }
}

TEST(PackedMatrixTest, RefusesWhatDoesNotFit) {
  const auto code = [](const auto& result) { return result.status().code(); };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const WeightEncoding bytes = model::EncodingOf(GgmlType::kQ8_0), fp32;
  EXPECT_EQ(code(PackedMatrix::Create(bytes, 1, 33)), kInvalid);
  EXPECT_EQ(code(PackedMatrix::Create(bytes, 1, 0)), kInvalid);
  EXPECT_EQ(code(PackedMatrix::Create(bytes, 0, 32)), kInvalid);
  EXPECT_EQ(code(PackedMatrix::Create(fp32, int64_t{1} << 40, 32)), kInvalid);
  EXPECT_EQ(code(PackedMatrix::Create(fp32, int64_t{1} << 28, int64_t{1} << 28)), kInvalid);
  EXPECT_EQ(code(PackedMatrix::Create(bytes, 1, 64, {32})), kInvalid);
  EXPECT_EQ(code(PackedMatrix::Create(bytes, 1, 64, {16, 64})), kInvalid);
  EXPECT_EQ(code(PackedMatrix::Create(bytes, 1, 64, {64, 64})), kInvalid);
  for (const std::string_view name : {"w8a8_bf16", "w8a8_zeros_bf16"}) {
    const WeightEncoding encoding = FormatNamed(name).encoding;
    const int64_t most = MostInt8Inputs(encoding);
    EXPECT_TRUE(PackedMatrix::Create(encoding, 1, most).ok());
    EXPECT_EQ(code(PackedMatrix::Create(encoding, 1, most + 32)), kInvalid);
  }
  WeightEncoding unknown = bytes;
  unknown.has_minimums = true;
  EXPECT_EQ(code(PackedMatrix::Create(unknown, 1, 32)), kInvalid);

  auto matrix = PackedMatrix::Create(bytes, 4, 64);
  ASSERT_TRUE(matrix.ok());
  const auto panel = std::make_unique<WeightPanel>();
  const auto pack = [&](int outputs, int begin, int end, int64_t column, int64_t k) {
    panel->outputs = outputs;
    panel->begin = begin;
    panel->end = end;
    return matrix->PackPanel(*panel, column, k).code();
  };
  EXPECT_EQ(pack(4, 0, 64, 0, 0), kInvalid);  // another encoding
  panel->encoding = bytes;
  EXPECT_EQ(pack(4, 0, 64, 0, 0), absl::StatusCode::kOk);
  EXPECT_EQ(pack(4, 192, 256, 0, 0), absl::StatusCode::kOk);
  EXPECT_EQ(pack(4, 0, 64, 1, 0), kInvalid);
  EXPECT_EQ(pack(1, 0, 64, -1, 0), kInvalid);
  EXPECT_EQ(pack(1, 0, 64, INT64_MAX, 0), kInvalid);
  EXPECT_EQ(pack(0, 0, 64, 0, 0), kInvalid);
  EXPECT_EQ(pack(33, 0, 64, 0, 0), kInvalid);
  EXPECT_EQ(pack(4, 0, 64, 0, 32), kInvalid);
  EXPECT_EQ(pack(4, 0, 32, 0, -32), kInvalid);
  EXPECT_EQ(pack(4, 0, 32, 0, 16), kInvalid);
  EXPECT_EQ(pack(4, 0, 32, 0, INT64_MAX), kInvalid);
  EXPECT_EQ(pack(4, 16, 48, 0, 0), kInvalid);
  EXPECT_EQ(pack(4, 0, 48, 0, 0), kInvalid);
  EXPECT_EQ(pack(4, 32, 32, 0, 0), kInvalid);
  EXPECT_EQ(pack(4, 224, 288, 0, 0), kInvalid);
  EXPECT_EQ(pack(4, -32, 32, 0, 0), kInvalid);
}

}  // namespace
}  // namespace flotilla::kernels
