// Rows as ggml's blocks: the bytes of the package gguf, and errors that are small.
#include "quantize/ggml_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tensor.h"
#include "quantize/k_quants.h"
#include "tests/support/encode_weights.h"
#include "tests/support/random.h"

namespace flotilla::quantize {
namespace {

using model::GgmlType;
using ::testing::HasSubstr;

constexpr GgmlType kLegacy[] = {GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                                GgmlType::kQ8_0};
constexpr GgmlType kAll[] = {GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                             GgmlType::kQ8_0, GgmlType::kQ4_K, GgmlType::kQ6_K};

// Bytes of tests/data/ggml_rows, which tests/quantize/make/make_ggml_rows.py makes.
std::vector<std::byte> ReadData(const std::string& name) {
  std::ifstream file("tests/data/ggml_rows/" + name + ".bin", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(text.empty()) << name;
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<std::byte> Encoded(GgmlType type, const std::vector<float>& weights) {
  const model::GgmlTypeInfo& info = model::InfoOf(type);
  std::vector<std::byte> bytes(weights.size() / info.block_elements * info.block_bytes);
  const absl::Status status = EncodeRow(type, weights, bytes);
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

std::vector<float> Decoded(GgmlType type, const std::vector<std::byte>& bytes, size_t count) {
  std::vector<float> weights(count);
  EXPECT_TRUE(model::DequantizeRow(type, bytes, weights).ok());
  return weights;
}

std::vector<float> RoundTrip(GgmlType type, const std::vector<float>& weights) {
  return Decoded(type, Encoded(type, weights), weights.size());
}

// The squared error of a block of 256, weighted as k_quants.h says, and as it is.
struct Error {
  double weighted = 0, plain = 0;
};

Error ErrorOf(GgmlType type, const std::vector<float>& weights, const std::vector<float>& decoded) {
  Error error;
  for (size_t begin = 0; begin < weights.size(); begin += 32) {
    double squares = 0;
    for (size_t i = begin; i < begin + 32; ++i) squares += std::pow(weights[i], 2);
    for (size_t i = begin; i < begin + 32; ++i) {
      const double x = weights[i];
      const double w = type == GgmlType::kQ6_K ? x * x : std::sqrt(squares / 32) + std::fabs(x);
      error.weighted += w * std::pow(decoded[i] - x, 2);
      error.plain += std::pow(decoded[i] - x, 2);
    }
  }
  return error;
}

TEST(GgmlRowsTest, HaveTheBytesOfGguf) {
  const std::vector<std::byte> bytes = ReadData("weights");
  std::vector<float> weights(bytes.size() / sizeof(float));
  std::memcpy(weights.data(), bytes.data(), bytes.size());
  for (const GgmlType type : kLegacy) {
    const std::string name(model::GgmlTypeName(type));
    const std::vector<std::byte> expected = ReadData(name), made = Encoded(type, weights);
    ASSERT_EQ(made.size(), expected.size()) << name;
    const size_t size = model::InfoOf(type).block_bytes;
    for (size_t at = 0; at < made.size(); ++at) {
      ASSERT_EQ(made[at], expected[at]) << name << " block " << at / size << " byte " << at % size;
    }
  }
}

// No weight is further off than half a step and what the rounding of the scales adds. A step is
// the span of 32 weights, or twice their largest, over the codes.
TEST(GgmlRowsTest, DecodeNearTheWeights) {
  testing::Random random(1);
  for (const GgmlType type : kAll) {
    SCOPED_TRACE(std::string(model::GgmlTypeName(type)));
    for (int round = 0; round < 100; ++round) {
      const float size = std::ldexp(1.0f, round % 20 - 9);
      std::vector<float> weights = random.Floats(256, size);
      if (round % 3 == 0) {
        for (float& weight : weights) weight += size / 3;
      }
      const std::vector<float> decoded = RoundTrip(type, weights);
      for (size_t begin = 0; begin < 256; begin += 32) {
        float largest = 0;
        for (size_t i = begin; i < begin + 32; ++i) {
          largest = std::max(largest, std::fabs(weights[i]));
        }
        const float codes = type == GgmlType::kQ8_0                              ? 254
                            : type == GgmlType::kQ6_K                            ? 62
                            : type == GgmlType::kQ5_0 || type == GgmlType::kQ5_1 ? 31
                                                                                 : 15;
        // An end of the signed types has no code for the largest weight of the other sign.
        const bool one_sided = type == GgmlType::kQ4_0 || type == GgmlType::kQ5_0;
        const float steps = one_sided ? 1.05f : type == GgmlType::kQ4_K ? 1.0f : 0.6f;
        for (size_t i = begin; i < begin + 32; ++i) {
          // Half of the least step of fp16 is 2^-25.
          ASSERT_LE(std::fabs(decoded[i] - weights[i]),
                    2 * largest / codes * steps + (codes + 1) * 0x1p-25f)
              << round << " " << i;
        }
      }
    }
  }
}

// Beside scales that only span the weights (tests/support/encode_weights.cc).
TEST(KQuantsTest, LoseLessThanScalesThatSpanTheWeights) {
  testing::Random random(2);
  for (const GgmlType type : {GgmlType::kQ4_K, GgmlType::kQ6_K}) {
    SCOPED_TRACE(std::string(model::GgmlTypeName(type)));
    double ratios = 0, plain = 0, worst = 0;
    constexpr int kBlocks = 400;
    for (int round = 0; round < kBlocks; ++round) {
      std::vector<float> weights = random.Floats(kKBlock, 0.05f);
      for (size_t i = 0; i < kKBlock; ++i) {
        // Sums of four are nearly normal. Some groups are larger, shifted, or have an outlier.
        if (round % 4 != 0) {
          weights[i] += random.Floats(1, 0.05f)[0] + random.Floats(1, 0.05f)[0];
        }
        if (round % 5 == 1) weights[i] *= static_cast<float>(i / 32 + 1);
        if (round % 5 == 2) weights[i] += 0.1f;
      }
      if (round % 5 == 3) weights[random.Below(kKBlock)] = 0.7f;
      const std::vector<float> twin =
          Decoded(type, testing::EncodeTensor(type, weights), weights.size());
      const Error made = ErrorOf(type, weights, RoundTrip(type, weights));
      const Error other = ErrorOf(type, weights, twin);
      ratios += made.weighted / other.weighted;
      plain += made.plain / other.plain;
      worst = std::max(worst, made.weighted / other.weighted);
    }
    EXPECT_LT(worst, 1.02);
    EXPECT_LT(ratios / kBlocks, 0.95);
    EXPECT_LT(plain / kBlocks, 0.97);
    const std::string name(model::GgmlTypeName(type));
    RecordProperty(name + "_worst", std::to_string(worst));
    RecordProperty(name + "_mean", std::to_string(ratios / kBlocks));
    RecordProperty(name + "_plain", std::to_string(plain / kBlocks));
  }
}

TEST(KQuantsTest, HardBlocks) {
  for (const GgmlType type : {GgmlType::kQ4_K, GgmlType::kQ6_K}) {
    SCOPED_TRACE(std::string(model::GgmlTypeName(type)));
    // What one scale can hold exactly, or nearly so.
    for (const float value : {0.0f, 0.3f, -0.3f, 1e-6f, -1e-5f, 1e-30f, -1e-42f, 1000.0f, 3e6f}) {
      const std::vector<float> same(kKBlock, value);
      for (const float decoded : RoundTrip(type, same)) {
        EXPECT_NEAR(decoded, value, std::fabs(value) * 0.02f + 1e-7f);
      }
      std::vector<float> one(kKBlock, 0.0f);
      one[77] = value;
      const std::vector<float> decoded = RoundTrip(type, one);
      for (size_t i = 0; i < kKBlock; ++i) {
        EXPECT_NEAR(decoded[i], one[i], std::fabs(value) * 0.02f + 1e-7f);
      }
    }
    // Scales so small that fp16 has few bits for them must not cut weights off.
    testing::Random random(3);
    for (int exponent = -30; exponent < -8; ++exponent) {
      const std::vector<float> weights = random.Floats(kKBlock, std::ldexp(1.0f, exponent));
      const std::vector<float> decoded = RoundTrip(type, weights);
      for (size_t i = 0; i < kKBlock; ++i) {
        EXPECT_NEAR(decoded[i], weights[i], std::ldexp(1.0f, exponent) * 0.25f + 1e-7f) << exponent;
      }
    }
  }
}

TEST(GgmlRowsTest, RefuseWhatTheTypeCannotHold) {
  const float infinite = std::numeric_limits<float>::infinity();
  for (const GgmlType type : kAll) {
    SCOPED_TRACE(std::string(model::GgmlTypeName(type)));
    for (const float value : {infinite, -infinite, std::nanf("")}) {
      std::vector<float> weights(256, 1.0f);
      weights[200] = value;
      std::vector<std::byte> bytes(1024);
      const absl::Status status = EncodeRow(type, weights, bytes);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("infinite or no number"));
    }
    for (const float value : {3e38f, -3e38f, 7e8f}) {
      std::vector<float> weights(256, 1.0f);
      weights[200] = value;
      std::vector<std::byte> bytes(1024);
      EXPECT_THAT(std::string(EncodeRow(type, weights, bytes).message()), HasSubstr("too large"))
          << value;
    }
  }
  std::vector<std::byte> bytes(4);
  EXPECT_TRUE(EncodeRow(GgmlType::kF16, std::vector<float>{1, 65504}, bytes).ok());
  EXPECT_FALSE(EncodeRow(GgmlType::kF16, std::vector<float>{1, 65536}, bytes).ok());
}

}  // namespace
}  // namespace flotilla::quantize
