// Random inputs for the kernel tests. They are a function of one seed, which every failure prints.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/text.h"
#include "common/types/weight_panel.h"
#include "kernels/ops.h"
#include "kernels/scalar_math.h"
#include "model/tensor.h"
#include "tests/support/random.h"
#include "tests/support/weight_case.h"

namespace flotilla::kernels {

// Returns a finite fp16 with magnitude in [2^-10, 2^-1) and a random sign.
inline uint16_t RandomHalf(testing::Random& random) {
  return static_cast<uint16_t>(random.Int(0, 1) << 15 | random.Int(5, 13) << 10 |
                               random.Int(0, 1023));
}

// The weights of a matrix as panels have them: windows [columns][windows of K].
struct RandomWeights {
  // Numbers and codes are random within the encoding, and scales are those of RandomHalf.
  RandomWeights(testing::Random& random, const WeightEncoding& weight_encoding, int column_count,
                int depth)
      : encoding(weight_encoding), columns(column_count), k(depth) {
    rows.resize(static_cast<size_t>(columns) * windows());
    for (WeightRow& row : rows) Fill(random, row);
    if (encoding.scales == WeightEncoding::Scales::kCoded) PutInTiles();
    if (encoding.groups > 0) PutInGroups(random);
    if (encoding.activations.kind != ActivationScheme::Kind::kNone) {
      for (int c = 0; c < columns; ++c) {
        for (int i = 0; i < k; i += kPanelWindow)
          ScaleAsFirst(rows[index(c, 0)], rows[index(c, i)]);
      }
    }
  }

  int windows() const { return (k + kPanelWindow - 1) / kPanelWindow; }
  size_t index(int column, int i) const {
    return static_cast<size_t>(column) * windows() + i / kPanelWindow;
  }
  const WeightRow& row(int column, int i) const { return rows[index(column, i)]; }

  // Weight i of a column, exact.
  double At(int column, int i) const {
    return testing::WeightOf(encoding, row(column, i), i % kPanelWindow);
  }

  // Packs the elements [begin, end) of all columns, as the elements from 0 on.
  absl::Status PackInto(PackedMatrix& matrix, int begin, int end) const {
    for (int first = 0; first < columns; first += kPanelOutputs) {
      for (int i = begin; i < end; i = (i / kPanelWindow + 1) * kPanelWindow) {
        auto panel = std::make_unique<WeightPanel>();
        panel->encoding = encoding;
        panel->outputs = std::min(kPanelOutputs, columns - first);
        panel->begin = i % kPanelWindow;
        panel->end = std::min(kPanelWindow, panel->begin + end - i);
        for (int c = 0; c < panel->outputs; ++c) panel->rows[c] = row(first + c, i);
        const absl::Status status = matrix.PackPanel(*panel, first, i - begin);
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  // The same weights as fp32 numbers.
  RandomWeights ToFp32() const {
    RandomWeights copy = *this;
    copy.encoding = {};
    for (int c = 0; c < columns; ++c) {
      for (int i = 0; i < k; ++i) {
        const float weight = static_cast<float>(At(c, i));
        std::memcpy(copy.rows[index(c, i)].numbers + i % kPanelWindow * 4, &weight, sizeof weight);
      }
    }
    return copy;
  }

  WeightEncoding encoding;
  int columns, k;
  std::vector<WeightRow> rows;

 private:
  // Gives the whole row the first scale and zero of `first`.
  static void ScaleAsFirst(const WeightRow& first, WeightRow& row) {
    std::fill(std::begin(row.scales), std::end(row.scales), first.scales[0]);
    std::fill(std::begin(row.wide_scales), std::end(row.wide_scales), first.wide_scales[0]);
    std::fill(std::begin(row.zeros), std::end(row.zeros), first.zeros[0]);
  }

  // Gives the columns of a tile of the file, in which the first one here is number 3, its numbers.
  void PutInTiles() {
    const auto tile = [](int column) { return (column + 3) / kTileOutputs; };
    for (int c = 1; c < columns; ++c) {
      if (tile(c) != tile(c - 1)) continue;
      for (int i = 0; i < k; i += kPanelWindow) {
        for (int group = 0; group < kPanelWindow; ++group) {
          const CodedScale& above = row(c - 1, i).coded_scales[group];
          CodedScale& own = rows[index(c, i)].coded_scales[group];
          own = {own.scale_code,  own.zero_code,    above.scale_step,
                 above.zero_step, above.scale_zero, above.zero_zero};
        }
      }
    }
  }

  // Gives each k a group, and each column a scale and a zero for each group.
  void PutInGroups(testing::Random& random) {
    std::vector<uint16_t> order(static_cast<size_t>(windows()) * kPanelWindow);
    for (uint16_t& group : order) group = static_cast<uint16_t>(random.Int(0, encoding.groups - 1));
    for (int c = 0; c < columns; ++c) {
      // Of the first window's k as they have been filled.
      const WeightRow first = rows[index(c, 0)];
      for (size_t i = 0; i < order.size(); ++i) {
        WeightRow& row = rows[index(c, static_cast<int>(i))];
        const size_t at = i % kPanelWindow;
        row.groups[at] = order[i];
        row.scales[at] = first.scales[order[i]];
        row.zeros[at] = first.zeros[order[i]];
        row.coded_scales[at] = first.coded_scales[order[i]];
      }
    }
  }

  int8_t RandomCode(testing::Random& random) const {
    switch (encoding.values) {
      case WeightEncoding::Values::kAll:
        return static_cast<int8_t>(random.Int(encoding.low, encoding.high));
      case WeightEncoding::Values::kNf4:
        return static_cast<int8_t>(random.Int(0, 15));
      case WeightEncoding::Values::kFp8:  // a number of either sign
        return static_cast<int8_t>(random.Int(0, 0x7E) | random.Int(0, 1) << 7);
      default:
        return ValuesOf(encoding.values)[random.Int(0, 15)];
    }
  }

  // Scales and zeros that are codes, and about one outlier in 100 weights.
  static void FillCoded(testing::Random& random, WeightRow& row) {
    const auto code = [&] { return static_cast<uint8_t>(random.Int(0, 7)); };
    const auto half = [&](float least, float span) {
      return FloatToHalf(least + span * (random.Unit() + 1) / 2);
    };
    for (CodedScale& scale : row.coded_scales) {
      scale = {.scale_code = code(),
               .zero_code = code(),
               .scale_step = half(0.001f, 0.02f),
               .zero_step = half(-0.2f, 1),
               .scale_zero = half(-8, 8),
               .zero_zero = half(-4, 8)};
    }
    for (uint16_t& outlier : row.outliers) {
      outlier = random.Int(0, 99) == 0 ? RandomHalf(random) : uint16_t{0};
    }
  }

  void Fill(testing::Random& random, WeightRow& row) const {
    std::memset(&row, 0, sizeof row);
    const auto put = [&](int i, auto number) {
      std::memcpy(row.numbers + i * sizeof number, &number, sizeof number);
    };
    for (int i = 0; i < kPanelWindow; ++i) {
      switch (encoding.numbers) {
        case WeightEncoding::Numbers::kFp32:
          put(i, random.Unit());
          break;
        case WeightEncoding::Numbers::kFp16:
          put(i, RandomHalf(random));
          break;
        case WeightEncoding::Numbers::kBf16:
          put(i, FloatToBf16(random.Unit()));
          break;
        case WeightEncoding::Numbers::kCodes:
          row.codes[i] = RandomCode(random);
          break;
      }
    }
    for (uint16_t& scale : row.scales) {
      scale = encoding.scales == WeightEncoding::Scales::kBf16 ? FloatToBf16(random.Unit())
                                                               : RandomHalf(random);
    }
    for (float& scale : row.wide_scales) scale = random.Unit();
    // The least zeros are those of codes that have none below, and the largest are one above all.
    for (int16_t& zero : row.zeros) {
      zero = static_cast<int16_t>(random.Int(encoding.low, encoding.high + 1));
    }
    for (uint16_t& minimum : row.minimums) minimum = RandomHalf(random);
    for (int8_t& factor : row.factors) factor = static_cast<int8_t>(random.Int(-128, 127));
    if (encoding.scales == WeightEncoding::Scales::kCoded) FillCoded(random, row);
    // A format with factors has one scale for the whole window.
    if (encoding.has_factors) {
      std::fill(std::begin(row.scales), std::end(row.scales), row.scales[0]);
    }
    // IQ4_XS has a factor for 32 k.
    if (encoding.values != WeightEncoding::Values::kAll) {
      for (int i = 1; i < kPanelWindow / kFactorGroup; i += 2) row.factors[i] = row.factors[i - 1];
    }
    if (!encoding.has_minimum_factors) return;
    // As K-quants have them: of 6 bits, the same for 32 k, or in Q2_K of 4 bits for 16, beside one
    // scale and one minimum.
    const bool fine = encoding.high == 3;
    for (int i = 0; i < kPanelWindow / kFactorGroup; ++i) {
      const bool first = fine || i % 2 == 0;
      const auto factor = [&](const int8_t* factors) {
        return static_cast<int8_t>(first ? random.Int(0, fine ? 15 : 63) : factors[i - 1]);
      };
      row.factors[i] = factor(row.factors);
      row.minimum_factors[i] = factor(row.minimum_factors);
    }
    std::fill(std::begin(row.minimums), std::end(row.minimums), row.minimums[0]);
  }
};

// Every type of a GGUF file that can be decoded.
inline std::vector<model::GgmlType> AllTypes() {
  std::vector<model::GgmlType> types;
  for (uint32_t id = 0; id < 256; ++id) {
    const auto type = static_cast<model::GgmlType>(id);
    if (model::IsDecodable(type)) types.push_back(type);
  }
  return types;
}

struct Format {
  std::string name;
  WeightEncoding encoding;
};

// The formats whose encodings tests take: those of GGUF files, and those of quantised Hugging Face
// folders. Each packed kind has the encoding of one of them.
inline std::vector<Format> AllFormats() {
  using Values = WeightEncoding::Values;
  using Scales = WeightEncoding::Scales;
  constexpr auto kCodes = WeightEncoding::Numbers::kCodes;
  std::vector<Format> all;
  for (const model::GgmlType type : AllTypes()) {
    all.push_back({std::string(model::GgmlTypeName(type)), model::EncodingOf(type)});
  }
  const auto add = [&](std::string name, const WeightEncoding& encoding) {
    all.push_back({std::move(name), encoding});
  };
  for (const auto& [suffix, scales] :
       {std::pair{"_fp16", Scales::kFp16}, {"_bf16", Scales::kBf16}}) {
    add(Cat("int4_zero", suffix),
        {.numbers = kCodes, .scales = scales, .low = 0, .high = 15, .has_zeros = true});
    add(Cat("int3_zero", suffix),
        {.numbers = kCodes, .scales = scales, .low = 0, .high = 7, .has_zeros = true});
    add(Cat("int2_zero", suffix),
        {.numbers = kCodes, .scales = scales, .low = 0, .high = 3, .has_zeros = true});
    add(Cat("int8_zero", suffix),
        {.numbers = kCodes, .scales = scales, .low = -128, .high = 127, .has_zeros = true});
    for (const auto& [name, low, high] : {std::tuple{"int4", 0, 15}, {"int8", -128, 127}}) {
      add(Cat(name, "_ordered", suffix), {.numbers = kCodes,
                                          .scales = scales,
                                          .scale_group = 1,
                                          .low = static_cast<int8_t>(low),
                                          .high = static_cast<int8_t>(high),
                                          .has_zeros = true,
                                          .groups = 7,
                                          .order = 1});
    }
  }
  add("int4_bf16", {.numbers = kCodes, .scales = Scales::kBf16, .low = -8, .high = 7});
  add("int8_bf16", {.numbers = kCodes, .scales = Scales::kBf16, .low = -128, .high = 127});
  add("int8_fp32", {.numbers = kCodes, .scales = Scales::kFp32, .low = -128, .high = 127});
  add("nvfp4_fp32", {.numbers = kCodes,
                     .values = Values::kFp4,
                     .scales = Scales::kFp32,
                     .scale_group = kFactorGroup,
                     .low = -12,
                     .high = 12});
  for (const bool ordered : {false, true}) {
    add(ordered ? "spqr_ordered" : "spqr",
        {.numbers = kCodes,
         .scales = Scales::kCoded,
         .scale_group = static_cast<uint8_t>(ordered ? 1 : kFactorGroup),
         .low = 0,
         .high = 7,
         .has_outliers = true,
         .groups = ordered ? 7 : 0,
         .order = ordered ? uint64_t{1} : 0});
  }
  add("nf4", {.numbers = kCodes, .values = Values::kNf4, .scales = Scales::kFp32});
  add("fp8", {.numbers = kCodes,
              .values = Values::kFp8,
              .scales = Scales::kFp32,
              .scale_group = kLongGroup});
  // Multiplied by activations of 8 bits.
  constexpr ActivationScheme kDynamic{.kind = ActivationScheme::Kind::kDynamic};
  const auto add_int8 = [&](std::string name, Scales scales, bool zeros,
                            const ActivationScheme& activations) {
    add(std::move(name), {.numbers = kCodes,
                          .scales = scales,
                          .low = -128,
                          .high = 127,
                          .has_zeros = zeros,
                          .activations = activations});
  };
  const auto fixed = [](float scale, int8_t zero) {
    return ActivationScheme{.kind = ActivationScheme::Kind::kStatic, .zero = zero, .scale = scale};
  };
  add_int8("w8a8_bf16", Scales::kBf16, false, kDynamic);
  add_int8("w8a8_zero_fp16", Scales::kFp16, true, kDynamic);
  add_int8("w8a8_static_fp32", Scales::kFp32, false, fixed(0.03f, 0));
  add_int8("w8a8_static_zero_fp32", Scales::kFp32, false, fixed(0.01f, -128));
  add_int8("w8a8_zeros_bf16", Scales::kBf16, true, fixed(0.02f, 93));
  return all;
}

// The format of that name, which there is.
inline Format FormatNamed(std::string_view name) {
  for (const Format& format : AllFormats()) {
    if (format.name == name) return format;
  }
  ADD_FAILURE() << "no format is " << name;
  return {};
}

// Returns `count` ascending multiples of 32, or as many as fit. The last one is k.
inline std::vector<int32_t> RandomSplits(testing::Random& random, int k, int count) {
  std::vector<int32_t> ends;
  const int blocks = k / kBlockK;
  for (int i = 1; i < std::min(count, blocks); ++i) {
    const int previous = ends.empty() ? 0 : ends.back() / kBlockK;
    const int left = std::min(count, blocks) - i;  // splits that must still fit
    ends.push_back(random.Int(previous + 1, blocks - left) * kBlockK);
  }
  ends.push_back(k);
  return ends;
}

inline PackedMatrix Pack(const RandomWeights& weights, const std::vector<int32_t>& splits = {}) {
  absl::StatusOr<PackedMatrix> matrix =
      PackedMatrix::Create(weights.encoding, weights.columns, weights.k, splits);
  if (!matrix.ok()) ADD_FAILURE() << matrix.status();
  const absl::Status packed = weights.PackInto(*matrix, 0, weights.k);
  if (!packed.ok()) ADD_FAILURE() << packed;
  return *std::move(matrix);
}

// Owns the memory of a QuantizedRows.
struct QuantizedBuffer {
  QuantizedBuffer(int rows, int k, int splits)
      : values(static_cast<size_t>(rows) * k),
        group_sums(static_cast<size_t>(rows) * k / kSumSpan),
        scales(static_cast<size_t>(rows) * splits) {}

  QuantizedRows view() { return {values.data(), group_sums.data(), scales.data()}; }

  std::vector<int16_t> values;
  std::vector<float> group_sums;
  std::vector<float> scales;
};

inline QuantizedBuffer Quantize(const Ops& ops, const std::vector<float>& x, int rows,
                                const MatrixView& weights) {
  QuantizedBuffer out(rows, weights.k, weights.split_count);
  ops.quantize_rows({.x = x.data(),
                     .x_stride = weights.k,
                     .k = weights.k,
                     .split_count = weights.split_count,
                     .split_ends = weights.split_ends,
                     .activations = weights.activations,
                     .out = out.view()},
                    0, rows);
  return out;
}

// A random product, and the weights from which its matrix was made.
struct RandomProduct {
  // 0 rows: that is random, too.
  RandomProduct(uint64_t seed, Format weight_format, int row_count = 0)
      : random(seed),
        format(std::move(weight_format)),
        rows(row_count > 0 ? row_count : random.Int(1, 64)),
        columns(random.Int(1, 100)),
        k(random.Int(1, 40) * kBlockK),
        splits(RandomSplits(random, k, random.Int(0, 1) == 0 ? 1 : random.Int(2, 9))),
        weights(random, format.encoding, columns, k),
        matrix(Pack(weights, splits)),
        x(random.Floats(static_cast<size_t>(rows) * k, 3.0f)),
        stride(columns + random.Int(0, 5)),
        out(random.Floats(static_cast<size_t>(rows) * stride)),
        accumulate(random.Int(0, 1) == 1) {}

  std::string Describe() const {
    return Cat(format.name, " rows ", rows, " columns ", columns, " k ", k, " splits ",
               splits.size(), accumulate ? " accumulate" : "");
  }
  // Which split input i is in.
  int SplitOf(int i) const {
    return static_cast<int>(std::upper_bound(splits.begin(), splits.end(), i) - splits.begin());
  }

  testing::Random random;
  Format format;
  int rows, columns, k;
  std::vector<int32_t> splits;
  RandomWeights weights;
  PackedMatrix matrix;
  std::vector<float> x;
  int64_t stride;
  std::vector<float> out;  // [rows, stride], initial content
  bool accumulate;
};

template <typename T>
::testing::AssertionResult SameBits(const std::vector<T>& expected, const std::vector<T>& actual) {
  if (expected.size() != actual.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &actual[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << " of " << expected.size()
                                           << ": expected " << expected[i] << ", got " << actual[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// Runs a test once per instruction path of this machine.
class IsaTest : public ::testing::TestWithParam<Isa> {
 protected:
  const Ops& ops() const { return GetOps(GetParam()); }
  const Ops& reference() const { return GetOps(Isa::kReference); }
};

inline std::string IsaName(const ::testing::TestParamInfo<Isa>& info) {
  return std::string(GetOps(info.param).name);
}

#define FLOTILLA_FOR_EACH_ISA(fixture) \
  INSTANTIATE_TEST_SUITE_P(Isa, fixture, ::testing::ValuesIn(DetectIsas()), IsaName)

}  // namespace flotilla::kernels
