#include "model/weights/weight_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tensor.h"
#include "tests/support/random.h"
#include "tests/support/sha256.h"
#include "tests/support/weight_case.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;
using testing::ReadWeightCase;
using testing::WeightCase;
using testing::WeightOf;

std::string Name(const WeightFormat& format) { return std::string(GgmlTypeName(format.type)); }

std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST(WeightFormats, DequantizeToTheBitsOfGguf) {
  for (const WeightFormat* format : WeightFormats()) {
    SCOPED_TRACE(Name(*format));
    const WeightCase expected = ReadWeightCase(format->type);
    std::vector<float> weights(expected.weights.size());
    ASSERT_TRUE(DequantizeRow(format->type, expected.blocks, weights).ok());
    EXPECT_EQ(Bits(weights), Bits(expected.weights));
  }
}

// 1,000 random blocks of each format with finite scales, as tests/data/weights/make_weights.py
// makes them of a counter, have the hash of what gguf decodes them to.
TEST(WeightFormats, ThousandBlocksDequantizeToTheBitsOfGguf) {
  constexpr size_t kBlocks = 1000;
  struct Finite {
    char kind;
    uint16_t when, clear, then;
  };
  constexpr Finite kFinite[] = {
      {'h', 0x7C00, 0x4000, 0}, {'b', 0x7F80, 0x4000, 0}, {'d', 0, 0x7FC0, 0x3F80}};
  size_t formats = 0;
  std::ifstream rows("tests/data/weights/hashes.tsv");
  for (std::string name, numbers, hash; std::getline(rows, name, '\t') &&
                                        std::getline(rows, numbers, '\t') &&
                                        std::getline(rows, hash);) {
    SCOPED_TRACE(name);
    const auto format = std::ranges::find_if(
        WeightFormats(), [&](const WeightFormat* each) { return Name(*each) == name; });
    ASSERT_NE(format, WeightFormats().end());
    ++formats;
    const GgmlTypeInfo& info = *FindGgmlType(static_cast<uint32_t>((*format)->type));
    std::vector<std::byte> blocks(kBlocks * info.block_bytes + 8);
    for (size_t i = 0; i * 8 < kBlocks * info.block_bytes; ++i) {
      const uint64_t word = testing::MixBits(i * testing::kRandomStep);
      std::memcpy(blocks.data() + i * 8, &word, sizeof word);
    }
    blocks.resize(kBlocks * info.block_bytes);
    std::istringstream list(numbers);
    for (std::string number; std::getline(list, number, ',');) {
      for (size_t i = 0; i < kBlocks; ++i) {
        std::byte* at = blocks.data() + i * info.block_bytes + std::stoul(number.substr(1));
        if (number[0] == 'e') {
          if (*at > std::byte{252}) *at ^= std::byte{128};
          continue;
        }
        const auto* finite = std::ranges::find(kFinite, number[0], &Finite::kind);
        uint16_t bits = LoadAs<uint16_t>(at);
        if ((bits & finite->when) == finite->when) {
          bits = static_cast<uint16_t>((bits & ~finite->clear) | finite->then);
        }
        std::memcpy(at, &bits, sizeof bits);
      }
    }
    std::vector<float> weights(kBlocks * info.block_elements);
    ASSERT_TRUE(DequantizeRow((*format)->type, blocks, weights).ok());
    EXPECT_EQ(testing::Sha256(std::as_bytes(std::span(weights))), hash);
  }
  EXPECT_EQ(formats, WeightFormats().size());
}

// Rows in any order, and ranges that begin and end inside the blocks of a format.
TEST(WeightFormats, PanelsHaveTheWeights) {
  const auto panel = std::make_unique<WeightPanel>();
  for (const WeightFormat* format : WeightFormats()) {
    SCOPED_TRACE(Name(*format));
    const WeightCase expected = ReadWeightCase(format->type);
    const Tensor tensor = expected.Matrix(format->type, 256);
    for (const WeightEncoding& encoding : {format->encoding, WeightEncoding{}}) {
      for (const auto& [begin, end] : {std::pair{0, 256}, {128, 256}, {32, 64}, {0, 224}}) {
        const int64_t rows[] = {1, 0, 1};
        ASSERT_TRUE(ReadPanel(tensor, rows, begin, end, encoding, *panel).ok());
        EXPECT_EQ(panel->outputs, 3);
        EXPECT_EQ(panel->begin, begin);
        EXPECT_EQ(panel->end, end);
        EXPECT_EQ(panel->encoding, encoding);
        for (int i = 0; i < 3; ++i) {
          for (int k = begin; k < end; ++k) {
            const WeightRow& row = panel->rows[i];
            ASSERT_EQ(static_cast<float>(WeightOf(encoding, row, k)),
                      expected.weights[rows[i] * 256 + k]);
            if (encoding.numbers != WeightEncoding::Numbers::kCodes) continue;
            ASSERT_GE(row.codes[k], encoding.low);
            ASSERT_LE(row.codes[k], encoding.high);
          }
        }
      }
    }
  }
}

// Columns as outputs, whatever blocks they lie in.
TEST(WeightFormats, TransposedPanelsHaveTheWeights) {
  const std::vector<int64_t> columns = {255, 0, 1, 31, 32, 200};
  const auto panel = std::make_unique<WeightPanel>();
  for (const WeightFormat* format : WeightFormats()) {
    SCOPED_TRACE(Name(*format));
    const WeightCase expected = ReadWeightCase(format->type);
    const Tensor matrix = expected.Matrix(format->type, 256);  // two rows
    for (const WeightEncoding& encoding : {TransposedEncodingOf(matrix), WeightEncoding{}}) {
      ASSERT_TRUE(ReadTransposedPanel(matrix, columns, 0, 2, encoding, *panel).ok());
      for (size_t i = 0; i < columns.size(); ++i) {
        for (int k = 0; k < 32; ++k) {
          const double weight =
              k < 2 ? expected.weights[static_cast<size_t>(k * 256 + columns[i])] : 0;
          EXPECT_EQ(WeightOf(encoding, panel->rows[i], k), weight) << columns[i];
        }
      }
    }
  }
}

TEST(WeightFormats, PanelsOfLaterWindows) {
  const WeightCase expected = ReadWeightCase(GgmlType::kQ8_0);
  const Tensor tensor = expected.Matrix(GgmlType::kQ8_0, 512);
  const auto panel = std::make_unique<WeightPanel>();
  const int64_t row = 0;
  ASSERT_TRUE(ReadPanel(tensor, {&row, 1}, 288, 512, EncodingOf(tensor.type), *panel).ok());
  EXPECT_EQ(panel->begin, 32);
  EXPECT_EQ(panel->end, 256);
  EXPECT_EQ(static_cast<float>(WeightOf(panel->encoding, panel->rows[0], 255)),
            expected.weights[511]);
}

TEST(WeightFormats, RefuseWhatIsNoPanel) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const WeightCase expected = ReadWeightCase(GgmlType::kQ4_0);
  Tensor tensor = expected.Matrix(GgmlType::kQ4_0, 256);
  const auto panel = std::make_unique<WeightPanel>();
  const auto read = [&](std::vector<int64_t> rows, int64_t begin, int64_t end) {
    return ReadPanel(tensor, rows, begin, end, EncodingOf(tensor.type), *panel).code();
  };
  EXPECT_EQ(read({0, 1}, 0, 256), absl::StatusCode::kOk);
  EXPECT_EQ(read({}, 0, 256), kInvalid);
  EXPECT_EQ(read(std::vector<int64_t>(33), 0, 256), kInvalid);
  EXPECT_EQ(read({2}, 0, 256), kInvalid);
  EXPECT_EQ(read({-1}, 0, 256), kInvalid);
  EXPECT_EQ(read({0}, 0, 288), kInvalid);
  EXPECT_EQ(read({0}, -32, 32), kInvalid);
  EXPECT_EQ(read({0}, 64, 64), kInvalid);
  EXPECT_EQ(read({0}, 16, 64), kInvalid);
  EXPECT_EQ(read({0}, 32, 48), kInvalid);
  EXPECT_EQ(
      ReadPanel(tensor, std::vector<int64_t>{0}, 0, 32, EncodingOf(GgmlType::kQ8_0), *panel).code(),
      kInvalid);
  // Data that is shorter than the shape says.
  tensor.data = tensor.data.first(tensor.data.size() - 18);
  EXPECT_EQ(read({0}, 0, 256), absl::StatusCode::kOk);
  EXPECT_EQ(read({1}, 0, 256), kInvalid);
  // Two windows.
  tensor = expected.Matrix(GgmlType::kQ4_0, 512);
  EXPECT_EQ(read({0}, 224, 288), kInvalid);
  // Rows that are no whole blocks.
  tensor.dims[0] = 80;
  EXPECT_EQ(read({0}, 0, 32), kInvalid);
  // A type that has no format.
  tensor.type = GgmlType::kQ8_1;
  EXPECT_EQ(read({0}, 0, 32), absl::StatusCode::kUnimplemented);
}

// Infinite scales and minimums, which codes of zero would make no numbers of.
TEST(WeightFormats, RefuseScalesThatAreNotFinite) {
  const WeightCase expected = ReadWeightCase(GgmlType::kQ4_1);
  std::vector<std::byte> blocks(expected.blocks.begin(), expected.blocks.end());
  Tensor tensor = expected.Matrix(GgmlType::kQ4_1, 256);
  tensor.data = blocks;
  const auto panel = std::make_unique<WeightPanel>();
  const auto read = [&](int64_t begin, const WeightEncoding& encoding) {
    const int64_t row = 1;
    const auto status = ReadPanel(tensor, {&row, 1}, begin, begin + 32, encoding, *panel);
    return std::string(status.message());
  };
  const size_t block = 8 + 3;  // of row 1
  for (const WeightEncoding& encoding : {EncodingOf(tensor), WeightEncoding{}}) {
    EXPECT_EQ(read(96, encoding), "");
    const auto set = [&](size_t at, uint16_t half) {
      std::memcpy(blocks.data() + block * 20 + at, &half, sizeof half);
    };
    set(0, 0xFC00);
    EXPECT_EQ(read(96, encoding), "row 1: a scale is infinite");
    EXPECT_EQ(read(64, encoding), "");
    set(0, 0);
    set(2, 0x7C01);
    EXPECT_EQ(read(96, encoding), "row 1: a minimum is no number");
    set(2, 0);
  }
}

TEST(WeightFormats, RefuseWrongSizesAndOtherTypes) {
  std::vector<float> out(32);
  const std::vector<std::byte> bytes(33);
  EXPECT_EQ(DequantizeRow(GgmlType::kQ8_0, bytes, out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(DequantizeRow(GgmlType::kQ8_1, bytes, out).message()), HasSubstr("Q8_1"));
}

// One block of each type, by hand.
TEST(WeightFormats, DequantizeByDefinition) {
  const auto block = [](std::vector<uint16_t> halves, std::vector<uint8_t> rest) {
    std::vector<std::byte> bytes(halves.size() * 2 + rest.size());
    std::memcpy(bytes.data(), halves.data(), halves.size() * 2);
    for (size_t i = 0; i < rest.size(); ++i) bytes[halves.size() * 2 + i] = std::byte{rest[i]};
    return bytes;
  };
  const uint16_t kHalf = FloatToHalf(0.5f), kTwo = FloatToHalf(2.0f);
  std::vector<uint8_t> nibbles(16, 0);
  nibbles[3] = 0xf1;  // element 3 = 1, element 19 = 15
  std::vector<float> out(32);

  ASSERT_TRUE(DequantizeRow(GgmlType::kQ4_0, block({kHalf}, nibbles), out).ok());
  EXPECT_EQ(out[3], 0.5f * (1 - 8));
  EXPECT_EQ(out[19], 0.5f * (15 - 8));
  EXPECT_EQ(out[0], 0.5f * -8);
  ASSERT_TRUE(DequantizeRow(GgmlType::kQ4_1, block({kHalf, kTwo}, nibbles), out).ok());
  EXPECT_EQ(out[3], 2.5f);
  EXPECT_EQ(out[19], 9.5f);

  std::vector<uint8_t> five = {0x08, 0, 0x08, 0};  // bits 3 and 19
  five.insert(five.end(), nibbles.begin(), nibbles.end());
  ASSERT_TRUE(DequantizeRow(GgmlType::kQ5_0, block({kHalf}, five), out).ok());
  EXPECT_EQ(out[3], 0.5f * (17 - 16));
  EXPECT_EQ(out[19], 0.5f * (31 - 16));
  ASSERT_TRUE(DequantizeRow(GgmlType::kQ5_1, block({kHalf, kTwo}, five), out).ok());
  EXPECT_EQ(out[3], 0.5f * 17 + 2);
  EXPECT_EQ(out[1], 2.0f);

  std::vector<uint8_t> eight(32, 0);
  eight[31] = 0x80;
  ASSERT_TRUE(DequantizeRow(GgmlType::kQ8_0, block({kHalf}, eight), out).ok());
  EXPECT_EQ(out[31], -64.0f);

  std::vector<float> one(1);
  ASSERT_TRUE(DequantizeRow(GgmlType::kBF16, block({0x4040}, {}), one).ok());
  EXPECT_EQ(one[0], 3.0f);
  ASSERT_TRUE(DequantizeRow(GgmlType::kF16, block({kTwo}, {}), one).ok());
  EXPECT_EQ(one[0], 2.0f);
}

}  // namespace
}  // namespace flotilla::model
