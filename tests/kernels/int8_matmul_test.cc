// The product of weights and activations of 8 bits, and how activations become 8 bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

using Kind = ActivationScheme::Kind;

class Int8MatMulTest : public IsaTest {};
FLOTILLA_FOR_EACH_ISA(Int8MatMulTest);

std::vector<Format> Int8Formats() {
  std::vector<Format> formats = AllFormats();
  std::erase_if(formats, [](const Format& format) {
    return format.encoding.activations.kind == Kind::kNone;
  });
  return formats;
}

std::vector<float> RunI8(const Ops& ops, const RandomProduct& p, QuantizedBuffer& x) {
  std::vector<float> out = p.out;
  ops.matmul_i8({.weights = p.matrix.view(),
                 .x = x.view(),
                 .rows = p.rows,
                 .out = out.data(),
                 .out_stride = p.stride,
                 .accumulate = p.accumulate},
                0, p.matrix.view().panels());
  return out;
}

TEST_P(Int8MatMulTest, SameBitsAsReference) {
  for (const Format& format : Int8Formats()) {
    for (int rows = 1; rows <= 64; ++rows) {
      const RandomProduct p(static_cast<uint64_t>(rows), format, rows);
      SCOPED_TRACE(absl::StrCat(format.name, ": ", p.Describe()));
      ASSERT_TRUE(HasInt8Product(p.matrix.kind()));
      ASSERT_FALSE(HasIntegerProduct(p.matrix.kind()));
      QuantizedBuffer x = Quantize(reference(), p.x, p.rows, p.matrix.view());
      ASSERT_TRUE(SameBits(RunI8(reference(), p, x), RunI8(ops(), p, x)));
    }
  }
}

// What the scheme says, in double: the quantised activations times the weights.
TEST_P(Int8MatMulTest, IsTheProductOfWhatTheCodesMean) {
  for (const Format& format : Int8Formats()) {
    const RandomProduct p(77, format, 9);
    const ActivationScheme& scheme = format.encoding.activations;
    SCOPED_TRACE(absl::StrCat(format.name, ": ", p.Describe()));
    QuantizedBuffer x = Quantize(ops(), p.x, p.rows, p.matrix.view());
    const std::vector<float> out = RunI8(ops(), p, x);
    for (int row = 0; row < p.rows; ++row) {
      const int8_t* const values = x.view().bytes(row, p.k);
      const auto activation = [&](int i) {
        const double scale = x.scales[static_cast<size_t>(row) * p.splits.size() + p.SplitOf(i)];
        return scale * (values[i] - scheme.zero);
      };
      for (int i = 0; i < p.k; ++i) {
        const float scale = x.scales[static_cast<size_t>(row) * p.splits.size() + p.SplitOf(i)];
        const float lowest = scheme.kind == Kind::kDynamic
                                 ? -std::numeric_limits<float>::infinity()
                                 : scale * static_cast<float>(-128 - scheme.zero);
        const float highest = scheme.kind == Kind::kDynamic
                                  ? std::numeric_limits<float>::infinity()
                                  : scale * static_cast<float>(127 - scheme.zero);
        EXPECT_NEAR(activation(i), std::clamp(p.x[row * p.k + i], lowest, highest), scale * 0.5001);
      }
      for (int column = 0; column < p.columns; ++column) {
        double sum = p.accumulate ? double{p.out[row * p.stride + column]} : 0.0;
        double magnitude = std::fabs(sum);
        for (int i = 0; i < p.k; ++i) {
          sum += activation(i) * p.weights.At(column, i);
          magnitude += std::fabs(activation(i) * p.weights.At(column, i));
        }
        ASSERT_NEAR(out[row * p.stride + column], sum, magnitude * 1e-6);
      }
    }
  }
}

// The largest codes and activations: nothing overflows or saturates.
TEST_P(Int8MatMulTest, LargestProducts) {
  for (const Format& format : Int8Formats()) {
    for (const int8_t code : {int8_t{-128}, int8_t{127}}) {
      for (const float value : {-1e6f, 1e6f}) {
        RandomProduct p(2, format, 13);
        SCOPED_TRACE(absl::StrCat(format.name, ": ", p.Describe()));
        for (WeightRow& row : p.weights.rows) {
          std::fill(std::begin(row.codes), std::end(row.codes), code);
          std::fill(std::begin(row.zeros), std::end(row.zeros), code < 0 ? 128 : -128);
        }
        p.matrix = Pack(p.weights, p.splits);
        std::fill(p.x.begin(), p.x.end(), value);
        p.accumulate = false;
        QuantizedBuffer x = Quantize(reference(), p.x, p.rows, p.matrix.view());
        const ActivationScheme& scheme = format.encoding.activations;
        const int most = scheme.kind == Kind::kStatic && value < 0 ? -128 : value < 0 ? -127 : 127;
        ASSERT_EQ(x.view().bytes(0, p.k)[0], most);
        const std::vector<float> out = RunI8(ops(), p, x);
        ASSERT_TRUE(SameBits(RunI8(reference(), p, x), out));
        for (int column = 0; column < p.columns; ++column) {
          const double sum =
              p.k * double{x.scales[0]} * (most - scheme.zero) * p.weights.At(column, 0);
          EXPECT_NEAR(out[column], sum, std::fabs(sum) * 1e-6);
        }
      }
    }
  }
}

TEST_P(Int8MatMulTest, OneRowAloneEqualsTheBatch) {
  for (const Format& format : Int8Formats()) {
    RandomProduct p(5, format, 33);
    p.accumulate = false;
    QuantizedBuffer x = Quantize(ops(), p.x, p.rows, p.matrix.view());
    const std::vector<float> batch = RunI8(ops(), p, x);
    for (int row = 0; row < p.rows; ++row) {
      RandomProduct one(5, format, 33);
      one.accumulate = false;
      one.rows = 1;
      one.x.assign(p.x.begin() + row * p.k, p.x.begin() + (row + 1) * p.k);
      QuantizedBuffer one_x = Quantize(ops(), one.x, 1, one.matrix.view());
      const std::vector<float> alone = RunI8(ops(), one, one_x);
      ASSERT_EQ(0, std::memcmp(alone.data(), &batch[row * p.stride], p.columns * 4));
    }
  }
}

TEST_P(Int8MatMulTest, QuantizesLikeTheReference) {
  for (const Format& format : Int8Formats()) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(absl::StrCat(format.name, ", seed ", seed));
      RandomProduct p(seed, format, 20);
      // The rows have numbers of all sizes, from far below one step to near the largest.
      for (int row = 0; row < p.rows; ++row) {
        const float scale = row % 2 == 0 ? 1 : std::ldexp(1.0f, p.random.Int(-120, 120));
        for (int i = 0; i < p.k; ++i) p.x[row * p.k + i] *= scale;
      }
      QuantizedBuffer expected = Quantize(reference(), p.x, p.rows, p.matrix.view());
      QuantizedBuffer actual = Quantize(ops(), p.x, p.rows, p.matrix.view());
      EXPECT_TRUE(SameBits(expected.values, actual.values));
      EXPECT_TRUE(SameBits(expected.group_sums, actual.group_sums));
      EXPECT_TRUE(SameBits(expected.scales, actual.scales));
    }
  }
}

TEST_P(Int8MatMulTest, QuantizationOfEdgeRows) {
  std::vector<float> x(4 * 32, 0.0f);
  x[1 * 32 + 3] = -2.0f;
  x[1 * 32 + 4] = 1.0f;
  x[2 * 32 + 31] = std::numeric_limits<float>::infinity();
  x[3 * 32] = std::numeric_limits<float>::quiet_NaN();
  const auto matrix = PackedMatrix::Create(FormatNamed("w8a8_bf16").encoding, 1, 32);
  QuantizedBuffer q = Quantize(ops(), x, 4, matrix->view());
  EXPECT_EQ(q.scales[0], 0.0f);
  EXPECT_EQ(q.scales[1], 2.0f / 127.0f);
  EXPECT_TRUE(std::isnan(q.scales[2]));
  EXPECT_TRUE(std::isnan(q.scales[3]));
  EXPECT_EQ(q.view().bytes(1, 32)[3], -127);
  EXPECT_EQ(q.view().bytes(1, 32)[4], 64);  // 63.5 to even
  EXPECT_EQ(q.group_sums[2], -63.0f);
  // A static scale is that of every finite row, and zeros are the scheme's.
  const auto fixed = PackedMatrix::Create(FormatNamed("w8a8_zeros_bf16").encoding, 1, 32);
  q = Quantize(ops(), x, 4, fixed->view());
  EXPECT_EQ(q.scales[0], 0.02f);
  EXPECT_EQ(q.scales[1], 0.02f);
  EXPECT_TRUE(std::isnan(q.scales[2]));
  EXPECT_TRUE(std::isnan(q.scales[3]));
  EXPECT_EQ(q.view().bytes(0, 32)[0], 93);
  EXPECT_EQ(q.view().bytes(1, 32)[3], -7);   // 93 - 100
  EXPECT_EQ(q.view().bytes(1, 32)[4], 127);  // 93 + 50
  EXPECT_EQ(q.group_sums[2], 30 * 93.0f - 7 + 127);
}

}  // namespace
}  // namespace flotilla::kernels
