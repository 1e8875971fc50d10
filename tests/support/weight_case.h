// What weights are: 512 of a format with what the package gguf decodes them to
// (tests/data/weights), and the formula of panels in double.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/tensor.h"

namespace flotilla::testing {

struct WeightCase {
  std::vector<std::byte> blocks;
  std::vector<float> weights;

  // The weights as a matrix of rows of `k`.
  model::Tensor Matrix(model::GgmlType type, uint64_t k) const {
    return {"t", 2, {k, weights.size() / k, 1, 1}, type, blocks};
  }
};

// If the file is missing, the test fails and the case is empty.
inline WeightCase ReadWeightCase(model::GgmlType type) {
  constexpr size_t kWeights = 512;
  const std::string path = "tests/data/weights/" + std::string(model::GgmlTypeName(type)) + ".bin";
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const model::GgmlTypeInfo& info = *model::FindGgmlType(static_cast<uint32_t>(type));
  const size_t size = kWeights / info.block_elements * info.block_bytes;
  if (bytes.size() != size + kWeights * sizeof(float)) {
    ADD_FAILURE() << path << " is missing or has a wrong size";
    return {};
  }
  WeightCase result{std::vector<std::byte>(size), std::vector<float>(kWeights)};
  std::memcpy(result.blocks.data(), bytes.data(), size);
  std::memcpy(result.weights.data(), bytes.data() + size, kWeights * sizeof(float));
  return result;
}

// Weight k of a window whose scale is a code: that of its definition, which is in fp32.
inline float CodedWeightOf(const WeightEncoding& encoding, const WeightRow& row, int k) {
  const CodedScale& coded = row.coded_scales[k / encoding.scale_group];
  const auto times = [](uint16_t step, int code, uint16_t zero) {
    const float difference = static_cast<float>(code) - model::HalfToFloat(zero);
    return model::HalfToFloat(step) * difference;
  };
  const float scale = times(coded.scale_step, coded.scale_code, coded.scale_zero);
  const float zero = times(coded.zero_step, coded.zero_code, coded.zero_zero);
  const float dense = scale * (static_cast<float>(row.codes[k]) - zero);
  return dense + model::HalfToFloat(row.outliers[k]);
}

// Weight k of a window by the definition of weight_panel.h. It is exact; the weight is its fp32.
inline double WeightOf(const WeightEncoding& encoding, const WeightRow& row, int k) {
  const auto at = [&](auto number) {
    std::memcpy(&number, row.numbers + k * sizeof number, sizeof number);
    return number;
  };
  switch (encoding.numbers) {
    case WeightEncoding::Numbers::kFp32:
      return at(float{});
    case WeightEncoding::Numbers::kFp16:
      return model::HalfToFloat(at(uint16_t{}));
    case WeightEncoding::Numbers::kBf16:
      return std::bit_cast<float>(uint32_t{at(uint16_t{})} << 16);
    case WeightEncoding::Numbers::kCodes:
      break;
  }
  if (encoding.scales == WeightEncoding::Scales::kCoded) return CodedWeightOf(encoding, row, k);
  const int group = k / encoding.scale_group;
  const uint16_t scale = row.scales[group];
  double weight = row.codes[k] - (encoding.has_zeros ? row.zeros[group] : 0);
  if (encoding.values == WeightEncoding::Values::kFp8) {
    weight = Fp8ToFloat(static_cast<uint8_t>(row.codes[k]));
  } else if (encoding.values == WeightEncoding::Values::kNf4) {
    weight = kNf4Values[row.codes[k]];
  }
  weight *= encoding.scales == WeightEncoding::Scales::kFp32 ? row.wide_scales[group]
            : encoding.scales == WeightEncoding::Scales::kBf16
                ? std::bit_cast<float>(uint32_t{scale} << 16)
                : model::HalfToFloat(scale);
  if (encoding.has_factors) weight *= row.factors[k / kFactorGroup];
  if (!encoding.has_minimums) return weight;
  double minimum = model::HalfToFloat(row.minimums[k / kScaleGroup]);
  if (encoding.has_minimum_factors) minimum *= row.minimum_factors[k / kFactorGroup];
  return weight + minimum;
}

}  // namespace flotilla::testing
