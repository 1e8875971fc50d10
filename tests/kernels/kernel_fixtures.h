// Random inputs for the kernel tests. They are a function of one seed, which every failure prints.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/scalar_math.h"
#include "tests/support/random.h"

namespace flotilla::kernels {

// Returns a finite fp16 with magnitude in [2^-10, 2^-1) and a random sign.
inline uint16_t RandomHalf(testing::Random& random) {
  return static_cast<uint16_t>(random.Int(0, 1) << 15 | random.Int(5, 13) << 10 |
                               random.Int(0, 1023));
}

// Returns raw file rows of `format`. Quants are random, and scales are those of RandomHalf.
inline std::vector<std::byte> RandomRows(testing::Random& random, WeightFormat format, int rows,
                                         int k) {
  std::vector<std::byte> bytes(rows * RowBytes(format, k));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Int(0, 255));
  const auto put_half = [&](size_t at) {
    const uint16_t half = RandomHalf(random);
    std::memcpy(bytes.data() + at, &half, sizeof half);
  };
  const int64_t block = RowBytes(format, kBlockK);
  switch (format) {
    case WeightFormat::kF32:
      for (size_t i = 0; i < bytes.size(); i += 4) {
        const float x = random.Unit();
        std::memcpy(bytes.data() + i, &x, sizeof x);
      }
      break;
    case WeightFormat::kF16:
      for (size_t i = 0; i < bytes.size(); i += 2) put_half(i);
      break;
    case WeightFormat::kBf16:
      for (size_t i = 0; i < bytes.size(); i += 2) {
        const uint16_t x = FloatToBf16(random.Unit());
        std::memcpy(bytes.data() + i, &x, sizeof x);
      }
      break;
    case WeightFormat::kQ4_1:
      for (size_t i = 0; i < bytes.size(); i += block) put_half(i + 2);
      [[fallthrough]];
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ8_0:
      for (size_t i = 0; i < bytes.size(); i += block) put_half(i);
      break;
  }
  return bytes;
}

inline const char* Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kQ4_0:
      return "q4_0";
    case WeightFormat::kQ4_1:
      return "q4_1";
    case WeightFormat::kQ8_0:
      return "q8_0";
  }
  return "?";
}

inline constexpr WeightFormat kAllFormats[] = {WeightFormat::kF32,  WeightFormat::kF16,
                                               WeightFormat::kBf16, WeightFormat::kQ4_0,
                                               WeightFormat::kQ4_1, WeightFormat::kQ8_0};

// Returns weight i of a raw row, in double, by GGML's definition of the format.
inline double FileWeight(WeightFormat format, const std::byte* row, int i) {
  const auto at = [&](int64_t offset, auto sample) {
    std::memcpy(&sample, row + offset, sizeof sample);
    return sample;
  };
  const int64_t block = i / kBlockK * RowBytes(format, kBlockK);
  const auto half = [&](int64_t offset) { return double{HalfToFloat(at(offset, uint16_t{}))}; };
  const auto nibble = [&](int64_t quants) {
    const int byte = at(quants + i % 16, uint8_t{});
    return i % 32 < 16 ? byte & 15 : byte >> 4;
  };
  switch (format) {
    case WeightFormat::kF32:
      return at(i * 4, float{});
    case WeightFormat::kF16:
      return half(i * 2);
    case WeightFormat::kBf16:
      return Bf16ToFloat(at(i * 2, uint16_t{}));
    case WeightFormat::kQ4_0:
      return half(block) * (nibble(block + 2) - 8);
    case WeightFormat::kQ4_1:
      return half(block) * nibble(block + 4) + half(block + 2);
    case WeightFormat::kQ8_0:
      return half(block) * at(block + 2 + i % 32, int8_t{});
  }
  return 0;
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

inline PackedMatrix Pack(WeightFormat format, int columns, int k,
                         const std::vector<std::byte>& rows,
                         const std::vector<int32_t>& splits = {}) {
  absl::StatusOr<PackedMatrix> matrix = PackedMatrix::Create(format, columns, k, splits);
  if (!matrix.ok()) ADD_FAILURE() << matrix.status();
  const absl::Status packed = matrix->PackColumns(0, columns, rows, RowBytes(format, k));
  if (!packed.ok()) ADD_FAILURE() << packed;
  return *std::move(matrix);
}

// Owns the memory of a QuantizedRows.
struct QuantizedBuffer {
  QuantizedBuffer(int rows, int k, int splits)
      : values(static_cast<size_t>(rows) * k),
        block_sums(static_cast<size_t>(rows) * k / kBlockK),
        scales(static_cast<size_t>(rows) * splits) {}

  QuantizedRows view() { return {values.data(), block_sums.data(), scales.data()}; }

  std::vector<int16_t> values;
  std::vector<float> block_sums;
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
                     .out = out.view()},
                    0, rows);
  return out;
}

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
