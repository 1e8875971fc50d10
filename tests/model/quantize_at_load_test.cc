// --quantize: codes are the nearest ones, and nothing else changes.
#include "model/quantize_at_load.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/load_spec.h"
#include "tests/support/hf_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"
#include "tests/support/weight_case.h"
#include "tests/support/with_kv_scales.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;

constexpr LoadQuantization kAll[] = {LoadQuantization::kInt8, LoadQuantization::kInt4,
                                     LoadQuantization::kNf4, LoadQuantization::kFp8};

class QuantizeAtLoadTest : public ::testing::TestWithParam<LoadQuantization> {};

std::string NameOf(LoadQuantization method) {
  for (const char* name : {"int8", "int4", "nf4", "fp8"}) {
    if (*ParseLoadQuantization(name) == method) return name;
  }
  return "?";
}

INSTANTIATE_TEST_SUITE_P(Methods, QuantizeAtLoadTest, ::testing::ValuesIn(kAll),
                         [](const auto& info) { return NameOf(info.param); });

std::vector<float> Values(const Tensor& tensor) {
  std::vector<float> values(tensor.elements());
  const size_t inputs = tensor.dims[0];
  for (size_t row = 0; row < values.size() / inputs; ++row) {
    const std::span<float> out = std::span(values).subspan(row * inputs, inputs);
    EXPECT_TRUE(DecodeRow(tensor, static_cast<int64_t>(row), out).ok());
  }
  return values;
}

std::vector<std::byte> Floats() {
  return testing::TinyGguf({.hidden = 320,
                            .heads = 10,
                            .kv_heads = 2,
                            .ffn = 416,
                            .tied_embedding = false,
                            .matrix_type = GgmlType::kF32,
                            .embedding_type = GgmlType::kBF16});
}

TEST_P(QuantizeAtLoadTest, ReplacesTheMatricesOfLayers) {
  const std::vector<std::byte> bytes = Floats();
  const auto file = ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto quantized = QuantizeAtLoad(*file, GetParam());
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  EXPECT_TRUE(LoadSpec(**quantized).ok());
  EXPECT_NE((*quantized)->MetadataHash(), (*file)->MetadataHash());
  EXPECT_THAT((*quantized)->format(), HasSubstr("quantized at load to " + NameOf(GetParam())));
  int changed = 0;
  for (const Tensor& tensor : (*quantized)->tensors()) {
    const Tensor* before = (*file)->FindTensor(tensor.name);
    ASSERT_EQ((*quantized)->FindTensor(tensor.name), &tensor);
    EXPECT_EQ(tensor.bytes(), before->bytes());  // those of the file
    const bool matrix = tensor.name.starts_with("blk.") && tensor.rank == 2;
    EXPECT_EQ(tensor.composite != nullptr, matrix) << tensor.name;
    changed += matrix ? 1 : 0;
  }
  EXPECT_EQ(changed, 2 * 7);
  const std::vector<KvScales> scales = {{0.5f, 0}};
  const auto scaled = std::make_shared<testing::WithKvScales>(*file, scales);
  EXPECT_TRUE(std::ranges::equal((*QuantizeAtLoad(scaled, GetParam()))->kv_scales(), scales));
}

// No code is nearer than the one that was chosen, and the largest weight of a group is kept nearly.
TEST_P(QuantizeAtLoadTest, TakesTheNearestCode) {
  const std::vector<std::byte> bytes = Floats();
  const auto file = ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto quantized = QuantizeAtLoad(*file, GetParam());
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  const auto panel = std::make_unique<WeightPanel>();
  for (const Tensor& tensor : (*quantized)->tensors()) {
    if (tensor.composite == nullptr) continue;
    const WeightEncoding encoding = EncodingOf(tensor);
    const std::vector<float> want = Values(*(*file)->FindTensor(tensor.name));
    const std::vector<float> got = Values(tensor);
    const auto inputs = static_cast<int64_t>(tensor.dims[0]);
    for (const int64_t row : {int64_t{0}, static_cast<int64_t>(tensor.dims[1]) - 1}) {
      for (int64_t k = 0; k < inputs; k += 32) {
        const std::vector<int64_t> rows = {row};
        ASSERT_TRUE(ReadPanel(tensor, rows, k, k + 32, encoding, *panel).ok());
        const auto at = static_cast<int>(k % kPanelWindow);
        for (int i = 0; i < 32; ++i) {
          WeightRow other = panel->rows[0];
          const auto index = static_cast<size_t>(row * inputs + k + i);
          const double error = std::fabs(double{got[index]} - double{want[index]});
          ASSERT_EQ(static_cast<float>(testing::WeightOf(encoding, other, at + i)), got[index]);
          for (int code = -128; code < 128; ++code) {
            other.codes[at + i] = static_cast<int8_t>(code);
            if (encoding.values == WeightEncoding::Values::kAll &&
                (code < std::max<int>(encoding.low, -127) || code > encoding.high)) {
              continue;
            }
            if (encoding.values == WeightEncoding::Values::kNf4 && (code < 0 || code > 15))
              continue;
            if (encoding.values == WeightEncoding::Values::kFp8 &&
                !IsFp8Number(static_cast<uint8_t>(code))) {
              continue;
            }
            const double weight = testing::WeightOf(encoding, other, at + i);
            // The quotient is rounded, which may prefer one of two that are nearly as near.
            ASSERT_LE(error, std::fabs(weight - double{want[index]}) +
                                 1e-6 * std::fabs(double{want[index]}))
                << tensor.name << " row " << row << " k " << k + i << " code " << code;
          }
        }
      }
    }
    // What is lost is at most half the distance of two codes, which the largest weight bounds.
    const double part = GetParam() == LoadQuantization::kInt8   ? 0.5 / 127
                        : GetParam() == LoadQuantization::kInt4 ? 1.01 / 15
                        : GetParam() == LoadQuantization::kNf4  ? 0.153
                                                                : 1.0 / 28;
    for (size_t begin = 0; begin < want.size(); begin += 32) {
      double largest = 0;
      const size_t row = begin / tensor.dims[0] * tensor.dims[0];
      for (size_t i = row; i < row + tensor.dims[0]; ++i) {
        largest = std::max(largest, std::fabs(double{want[i]}));
      }
      for (size_t i = begin; i < begin + 32; ++i) {
        ASSERT_LE(std::fabs(double{got[i]} - double{want[i]}), part * largest * 1.01);
      }
    }
  }
}

// Any part of a row has the codes of the whole.
TEST_P(QuantizeAtLoadTest, PartsOfRowsAgree) {
  const std::vector<std::byte> bytes = Floats();
  const auto file = ParseCheckpoint(bytes);
  const auto quantized = QuantizeAtLoad(*file, GetParam());
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  const Tensor& tensor = *(*quantized)->FindTensor("blk.1.ffn_down.weight");
  const auto inputs = static_cast<int64_t>(tensor.dims[0]);
  const std::vector<float> all = Values(tensor);
  const auto panel = std::make_unique<WeightPanel>();
  const std::vector<int64_t> rows = {5};
  for (int64_t begin = 0; begin < inputs; begin += 32) {
    for (int64_t end = begin + 32; end <= std::min(inputs, begin / 256 * 256 + 256); end += 32) {
      ASSERT_TRUE(ReadPanel(tensor, rows, begin, end, WeightEncoding{}, *panel).ok());
      const auto at = static_cast<size_t>(begin % 256) * sizeof(float);
      EXPECT_EQ(0, std::memcmp(panel->rows[0].numbers + at, all.data() + rows[0] * inputs + begin,
                               static_cast<size_t>(end - begin) * sizeof(float)));
    }
  }
}

// Weights that are no numbers are refused by name, and rows of zeros stay zeros.
TEST_P(QuantizeAtLoadTest, HasNoCodeForWhatIsNoNumber) {
  std::vector<std::byte> bytes = Floats();
  size_t offset = 0;
  {
    const auto file = ParseCheckpoint(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    offset =
        static_cast<size_t>((*file)->FindTensor("blk.0.ffn_up.weight")->data.data() - bytes.data());
  }
  const auto put = [&](size_t row, size_t k, float value) {
    std::memcpy(bytes.data() + offset + (row * 320 + k) * sizeof value, &value, sizeof value);
  };
  put(3, 7, std::numeric_limits<float>::quiet_NaN());
  put(4, 7, std::numeric_limits<float>::infinity());
  for (size_t k = 0; k < 320; ++k) put(5, k, 0);
  const auto file = ParseCheckpoint(bytes);
  const auto quantized = QuantizeAtLoad(*file, GetParam());
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  const Tensor& tensor = *(*quantized)->FindTensor("blk.0.ffn_up.weight");
  const auto panel = std::make_unique<WeightPanel>();
  const auto error = [&](int64_t row) {
    const std::vector<int64_t> rows = {row};
    return std::string(ReadPanel(tensor, rows, 0, 256, EncodingOf(tensor), *panel).message());
  };
  EXPECT_EQ(error(3), "row 3: a scale is no number");
  EXPECT_THAT(error(4), HasSubstr("row 4: a "));
  EXPECT_EQ(error(5), "");
  std::vector<float> row(320, 1.0f);
  ASSERT_TRUE(DecodeRow(tensor, 5, row).ok());
  EXPECT_THAT(row, ::testing::Each(0.0f));
}

TEST(QuantizeAtLoad, RefusesWhatItCannotDo) {
  EXPECT_THAT(std::string(ParseLoadQuantization("int3").status().message()),
              HasSubstr("'int3' is none of none, int8, int4, nf4, fp8"));
  const std::vector<std::byte> packed = testing::TinyGguf();
  const auto file = ParseCheckpoint(packed);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string(QuantizeAtLoad(*file, LoadQuantization::kInt8).status().message()),
              HasSubstr("no matrix can be quantized to int8: the model is quantized already"));
  EXPECT_EQ(*QuantizeAtLoad(*file, LoadQuantization::kNone), *file);
}

}  // namespace
}  // namespace flotilla::model
