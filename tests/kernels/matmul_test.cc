// Packing, activation quantisation and the two matrix products.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

class MatMulTest : public IsaTest {};
FLOTILLA_FOR_EACH_ISA(MatMulTest);

std::vector<float> RunI16(const Ops& ops, const RandomProduct& p, QuantizedBuffer& x) {
  std::vector<float> out = p.out;
  ops.matmul_i16({.weights = p.matrix.view(),
                  .x = x.view(),
                  .rows = p.rows,
                  .out = out.data(),
                  .out_stride = p.stride,
                  .accumulate = p.accumulate},
                 0, p.matrix.view().panels());
  return out;
}

std::vector<float> RunF32(const Ops& ops, const RandomProduct& p) {
  std::vector<float> out = p.out;
  ops.matmul_f32({.weights = p.matrix.view(),
                  .x = p.x.data(),
                  .x_stride = p.k,
                  .rows = p.rows,
                  .out = out.data(),
                  .out_stride = p.stride,
                  .accumulate = p.accumulate},
                 0, p.matrix.view().panels());
  return out;
}

TEST_P(MatMulTest, SameBitsAsReference) {
  for (const Format& format : AllFormats()) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      RandomProduct p(seed, format);
      SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", p.Describe()));
      ASSERT_TRUE(SameBits(RunF32(reference(), p), RunF32(ops(), p)));
      if (!p.matrix.quantized()) continue;
      QuantizedBuffer x = Quantize(reference(), p.x, p.rows, p.matrix.view());
      ASSERT_TRUE(SameBits(RunI16(reference(), p, x), RunI16(ops(), p, x)));
    }
  }
}

// Kernels cut rows into tiles of several sizes. All numbers of rows in long runs, else those beside
// the ends of tiles.
TEST_P(MatMulTest, SameBitsOfAnyNumberOfRows) {
  const bool all = std::getenv("FLOTILLA_LONG") != nullptr;
  for (const Format& format : AllFormats()) {
    for (int rows = 1; rows <= 64; ++rows) {
      if (!all && rows > 9 && rows % 8 > 1 && rows < 63) continue;
      RandomProduct p(static_cast<uint64_t>(100 + rows), format, rows);
      SCOPED_TRACE(p.Describe());
      const std::vector<float> packed = RunF32(ops(), p);
      if (p.matrix.quantized()) {
        QuantizedBuffer x = Quantize(reference(), p.x, p.rows, p.matrix.view());
        ASSERT_TRUE(SameBits(RunI16(reference(), p, x), RunI16(ops(), p, x)));
      }
      p.matrix = Pack(p.weights.ToFp32(), p.splits);
      ASSERT_TRUE(SameBits(RunF32(ops(), p), packed));
    }
  }
}

TEST_P(MatMulTest, NearDoublePrecision) {
  for (const Format& format : AllFormats()) {
    RandomProduct p(77, format);
    SCOPED_TRACE(p.Describe());
    const std::vector<float> f32 = RunF32(ops(), p);
    std::vector<float> i16 = f32;
    if (p.matrix.quantized()) {
      QuantizedBuffer x = Quantize(ops(), p.x, p.rows, p.matrix.view());
      i16 = RunI16(ops(), p, x);
    }
    for (int row = 0; row < p.rows; ++row) {
      for (int column = 0; column < p.columns; ++column) {
        double sum = p.accumulate ? double{p.out[row * p.stride + column]} : 0.0;
        double magnitude = std::fabs(sum);
        for (int i = 0; i < p.k; ++i) {
          const double weight = p.weights.At(column, i);
          sum += p.x[row * p.k + i] * weight;
          magnitude += std::fabs(p.x[row * p.k + i] * weight);
        }
        // In fp32, rounding errors of a chain of up to 1,536 steps partly cancel (the worst case is
        // 9e-5). In 16 bits the error is half a step of |x|/32767 per element.
        EXPECT_NEAR(f32[row * p.stride + column], sum, magnitude * 1e-5);
        EXPECT_NEAR(i16[row * p.stride + column], sum, magnitude * 6e-5);
      }
    }
  }
}

TEST_P(MatMulTest, EveryKindGivesTheBitsOfItsFp32Copy) {
  for (const Format& format : AllFormats()) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      RandomProduct p(seed, format);
      SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", p.Describe()));
      const std::vector<float> packed = RunF32(ops(), p);
      p.matrix = Pack(p.weights.ToFp32(), p.splits);
      ASSERT_TRUE(SameBits(RunF32(ops(), p), packed));
    }
  }
}

// The largest codes, factors and activations: no integer overflows.
TEST_P(MatMulTest, LargestProducts) {
  for (const Format& format : AllFormats()) {
    RandomProduct p(2, format);
    if (!p.matrix.quantized()) continue;
    SCOPED_TRACE(p.Describe());
    for (WeightRow& row : p.weights.rows) {
      std::fill(std::begin(row.codes), std::end(row.codes), p.weights.encoding.low);
      // Those of Q2_K have four bits.
      const int8_t factor = p.weights.encoding.high == 3 && p.weights.encoding.low == 0 ? 15 : -128;
      std::fill(std::begin(row.factors), std::end(row.factors), factor);
      std::fill(std::begin(row.scales), std::end(row.scales), 0x3C00);  // 1
    }
    for (WeightRow& row : p.weights.rows) {
      if (p.weights.encoding.has_zeros) {
        std::fill(std::begin(row.zeros), std::end(row.zeros), p.weights.encoding.high + 1);
      } else if (p.weights.encoding.low == 0) {
        std::memset(row.codes, p.weights.encoding.high, 256);
      }
    }
    p.matrix = Pack(p.weights, p.splits);
    std::fill(p.x.begin(), p.x.end(), 1.0f);
    p.accumulate = false;
    QuantizedBuffer x = Quantize(reference(), p.x, p.rows, p.matrix.view());
    ASSERT_EQ(x.values[0], 32767);
    const std::vector<float> out = RunI16(ops(), p, x);
    ASSERT_TRUE(SameBits(RunI16(reference(), p, x), out));
    for (int column = 0; column < p.columns; ++column) {
      double sum = 0;
      for (int i = 0; i < p.k; ++i) sum += p.weights.At(column, i);
      EXPECT_NEAR(out[column], sum, std::fabs(sum) * 1e-6 + p.k * 1e-5);
    }
  }
}

TEST_P(MatMulTest, OneRowAloneEqualsTheBatch) {
  for (const Format& format : AllFormats()) {
    RandomProduct p(5, format);
    p.accumulate = false;
    const std::vector<float> batch = RunF32(ops(), p);
    QuantizedBuffer x = Quantize(ops(), p.x, p.rows, p.matrix.view());
    const std::vector<float> batch_i16 =
        p.matrix.quantized() ? RunI16(ops(), p, x) : std::vector<float>();
    for (int row = 0; row < p.rows; ++row) {
      RandomProduct one(5, format);
      one.accumulate = false;
      one.rows = 1;
      one.x.assign(p.x.begin() + row * p.k, p.x.begin() + (row + 1) * p.k);
      const std::vector<float> alone = RunF32(ops(), one);
      EXPECT_EQ(0, std::memcmp(alone.data(), &batch[row * p.stride], p.columns * 4));
      if (!p.matrix.quantized()) continue;
      QuantizedBuffer one_x = Quantize(ops(), one.x, 1, one.matrix.view());
      const std::vector<float> alone_i16 = RunI16(ops(), one, one_x);
      EXPECT_EQ(0, std::memcmp(alone_i16.data(), &batch_i16[row * p.stride], p.columns * 4));
    }
  }
}

TEST_P(MatMulTest, WritesOnlyItsPanels) {
  uint64_t seed = 10;
  while (RandomProduct(seed, FormatNamed("Q4_1")).matrix.view().panels() <= 2) ++seed;
  RandomProduct p(seed, FormatNamed("Q4_1"));
  p.accumulate = false;
  const std::vector<float> whole = RunF32(ops(), p);
  std::vector<float> parts = p.out;
  for (int panel = p.matrix.view().panels() - 1; panel >= 0; --panel) {
    std::vector<float> before = parts;
    ops().matmul_f32({.weights = p.matrix.view(),
                      .x = p.x.data(),
                      .x_stride = p.k,
                      .rows = p.rows,
                      .out = parts.data(),
                      .out_stride = p.stride},
                     panel, panel + 1);
    for (int row = 0; row < p.rows; ++row) {
      for (int c = 0; c < p.stride; ++c) {
        if (c / kPanelColumns == panel && c < p.columns) continue;
        ASSERT_EQ(parts[row * p.stride + c], before[row * p.stride + c]);
      }
    }
  }
  EXPECT_TRUE(SameBits(whole, parts));
}

TEST_P(MatMulTest, ConsecutiveSplitSubtreesAddUpToTheWhole) {
  // There are four splits, and each of two ranks owns two. The sum of the ranks' subtrees is the
  // product of the whole matrix.
  testing::Random random(3);
  const int k = 256;
  const int columns = 40;
  const RandomWeights weights(random, model::EncodingOf(model::GgmlType::kQ4_1), columns, k);
  const std::vector<float> x = random.Floats(k);
  const auto product = [&](int begin, int end) {
    std::vector<int32_t> splits;
    for (int e = begin + 64; e <= end; e += 64) splits.push_back(e - begin);
    auto matrix = PackedMatrix::Create(weights.encoding, columns, end - begin, splits);
    EXPECT_TRUE(matrix.ok());
    EXPECT_TRUE(weights.PackInto(*matrix, begin, end).ok());
    const std::vector<float> part(x.begin() + begin, x.begin() + end);
    QuantizedBuffer quantized = Quantize(ops(), part, 1, matrix->view());
    std::vector<float> out(columns);
    ops().matmul_i16({.weights = matrix->view(),
                      .x = quantized.view(),
                      .rows = 1,
                      .out = out.data(),
                      .out_stride = columns},
                     0, matrix->view().panels());
    return out;
  };
  const std::vector<float> whole = product(0, 256);
  const std::vector<float> left = product(0, 128);
  const std::vector<float> right = product(128, 256);
  for (int c = 0; c < columns; ++c) EXPECT_EQ(whole[c], left[c] + right[c]);
}

TEST_P(MatMulTest, QuantizesLikeTheReference) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomProduct p(seed, FormatNamed("Q4_1"));
    // The rows have numbers of all sizes, from far below one step to near the largest.
    for (int row = 0; row < p.rows; ++row) {
      const float scale = std::ldexp(1.0f, p.random.Int(-120, 120));
      for (int i = 0; i < p.k; ++i) p.x[row * p.k + i] *= scale;
    }
    QuantizedBuffer expected = Quantize(reference(), p.x, p.rows, p.matrix.view());
    QuantizedBuffer actual = Quantize(ops(), p.x, p.rows, p.matrix.view());
    EXPECT_TRUE(SameBits(expected.values, actual.values));
    EXPECT_TRUE(SameBits(expected.group_sums, actual.group_sums));
    EXPECT_TRUE(SameBits(expected.scales, actual.scales));
  }
}

TEST_P(MatMulTest, QuantizationOfEdgeRows) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(6 * 32, 0.0f);
  x[1 * 32 + 3] = -2.0f;
  x[1 * 32 + 4] = 1.0f;
  x[2 * 32 + 31] = inf;
  x[3 * 32] = nan;
  x[3 * 32 + 1] = inf;
  x[4 * 32] = std::numeric_limits<float>::denorm_min();
  x[5 * 32 + 16] = 32767.0f;
  x[5 * 32 + 17] = -16383.0f;
  const auto matrix = PackedMatrix::Create(model::EncodingOf(model::GgmlType::kQ8_0), 1, 32);
  QuantizedBuffer q = Quantize(ops(), x, 6, matrix->view());
  EXPECT_EQ(q.scales[0], 0.0f);
  EXPECT_EQ(q.scales[1], 2.0f / 32767.0f);
  EXPECT_EQ(q.values[32 + 3], -32767);
  EXPECT_EQ(q.values[32 + 4], 16384);  // 16383.5 to even
  EXPECT_EQ(q.group_sums[2], 16384.0f - 32767.0f);
  EXPECT_EQ(q.group_sums[3], 16384.0f - 32767.0f);
  EXPECT_EQ(q.group_sums[10], 16384.0f);
  EXPECT_EQ(q.group_sums[11], 0.0f);
  EXPECT_TRUE(std::isnan(q.scales[2]));
  EXPECT_TRUE(std::isnan(q.scales[3]));
  EXPECT_EQ(q.scales[4], 0.0f);
  for (const int row : {0, 2, 3, 4}) {
    EXPECT_EQ(q.group_sums[row * 2], 0.0f);
    EXPECT_EQ(q.group_sums[row * 2 + 1], 0.0f);
    EXPECT_TRUE(std::all_of(&q.values[row * 32], &q.values[row * 32] + 32,
                            [](int16_t v) { return v == 0; }));
  }
}

}  // namespace
}  // namespace flotilla::kernels
