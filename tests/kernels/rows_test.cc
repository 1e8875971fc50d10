// Row-wise ops, the scalar functions they share, noise, the RoPE table and the
// choice of an instruction path.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/rope_table.h"
#include "model/rope_frequencies.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class RowsTest : public IsaTest {};
FLOTILLA_FOR_EACH_ISA(RowsTest);

TEST_P(RowsTest, RmsNorm) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    testing::Random random(seed);
    const int rows = random.Int(1, 5);
    const int n = seed == 1 ? 576 : random.Int(1, 700);
    SCOPED_TRACE(absl::StrCat("seed ", seed, " rows ", rows, " n ", n));
    const std::vector<float> x = random.Floats(rows * n, 8.0f);
    const std::vector<float> weight = random.Floats(n);
    const auto run = [&](const Ops& op) {
      std::vector<float> out(x.size());
      op.rms_norm({.x = x.data(),
                   .x_stride = n,
                   .weight = weight.data(),
                   .n = n,
                   .eps = 1e-5f,
                   .out = out.data(),
                   .out_stride = n},
                  0, rows);
      return out;
    };
    const std::vector<float> out = run(ops());
    ASSERT_TRUE(SameBits(run(reference()), out));
    for (int row = 0; row < rows; ++row) {
      double sum = 0;
      for (int i = 0; i < n; ++i) sum += double{x[row * n + i]} * x[row * n + i];
      const double scale = 1.0 / std::sqrt(sum / n + 1e-5);
      for (int i = 0; i < n; ++i) {
        const double exact = x[row * n + i] * scale * weight[i];
        ASSERT_NEAR(out[row * n + i], exact, std::fabs(exact) * 2e-6 + 1e-30);
      }
    }
  }
}

TEST_P(RowsTest, LayerNorm) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    testing::Random random(seed);
    const int rows = random.Int(1, 5);
    const int n = seed == 1 ? 576 : random.Int(1, 700);
    SCOPED_TRACE(absl::StrCat("seed ", seed, " rows ", rows, " n ", n));
    std::vector<float> x = random.Floats(rows * n, 8.0f);
    for (float& value : x) value += 3;
    const std::vector<float> weight = random.Floats(n), bias = random.Floats(n);
    for (const bool biased : {true, false}) {
      const auto run = [&](const Ops& op) {
        std::vector<float> out(x.size());
        op.layer_norm({.x = x.data(),
                       .x_stride = n,
                       .weight = weight.data(),
                       .bias = biased ? bias.data() : nullptr,
                       .n = n,
                       .eps = 1e-5f,
                       .out = out.data(),
                       .out_stride = n},
                      0, rows);
        return out;
      };
      const std::vector<float> out = run(ops());
      ASSERT_TRUE(SameBits(run(reference()), out));
      for (int row = 0; row < rows; ++row) {
        double sum = 0, squares = 0;
        for (int i = 0; i < n; ++i) sum += x[row * n + i];
        for (int i = 0; i < n; ++i) squares += std::pow(x[row * n + i] - sum / n, 2);
        const double scale = 1.0 / std::sqrt(squares / n + 1e-5);
        for (int i = 0; i < n; ++i) {
          const double exact =
              (x[row * n + i] - sum / n) * scale * weight[i] + (biased ? bias[i] : 0);
          ASSERT_NEAR(out[row * n + i], exact, n == 1 ? 1e-3 : 2e-5);
        }
      }
    }
  }
}

TEST_P(RowsTest, Rope) {
  for (const int dim : {16, 64, 80, 128}) {
    testing::Random random(dim);
    const int tokens = 5;
    const int heads = 3;
    const int64_t stride = heads * dim + 7;
    const RopeTable table(300, model::RopeFrequencies(dim, 1e5));
    const std::vector<int32_t> positions = {0, 299, 1, 7, 42};
    const std::vector<float> x = random.Floats(tokens * stride);
    const auto run = [&](const Ops& op) {
      std::vector<float> out = x;
      op.rope({.x = out.data(),
               .token_stride = stride,
               .heads = heads,
               .head_stride = dim,
               .dim = dim,
               .positions = positions.data(),
               .table = table.data()},
              0, tokens);
      return out;
    };
    const std::vector<float> out = run(ops());
    ASSERT_TRUE(SameBits(run(reference()), out)) << "dim " << dim;
    for (int i = 0; i < dim; ++i) EXPECT_EQ(out[i], x[i]);  // position 0 rotates nothing
    for (int pair = 0; pair < dim / 2; ++pair) {
      const double angle = 299.0 * std::pow(1e5, -2.0 * pair / dim);
      const float* in = &x[stride + dim + 2 * pair];  // token 1, head 1
      const float* rotated = &out[stride + dim + 2 * pair];
      EXPECT_NEAR(rotated[0], in[0] * std::cos(angle) - in[1] * std::sin(angle), 1e-4);
      EXPECT_NEAR(rotated[1], in[0] * std::sin(angle) + in[1] * std::cos(angle), 1e-4);
    }
  }
}

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kRelu, Activation::kClippedSwiglu};

double ActivatedExactly(Activation activation, double gate, double up) {
  switch (activation) {
    case Activation::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case Activation::kGelu:
      return gate / 2 * (1 + std::erf(gate / std::sqrt(2.0))) * up;
    case Activation::kGeluTanh: {
      const double inner = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
      return gate / 2 * (1 + std::tanh(inner)) * up;
    }
    case Activation::kRelu:
      return std::max(gate, 0.0) * up;
    case Activation::kClippedSwiglu: {
      const double g = std::min(gate, 7.0);
      return g / (1 + std::exp(-1.702 * g)) * (std::clamp(up, -7.0, 7.0) + 1);
    }
  }
  return 0;
}

TEST_P(RowsTest, ActivateAndAdd) {
  for (const Activation activation : kActivations) {
    for (const int n : {1, 15, 16, 17, 100, 1536}) {
      SCOPED_TRACE(absl::StrCat("activation ", static_cast<int>(activation), ", n ", n));
      testing::Random random(n);
      const int rows = 3;
      const std::vector<float> in = random.Floats(rows * 2 * n, 30.0f);  // gate and up side by side
      const auto run = [&](const Ops& op, bool gated) {
        std::vector<float> out(rows * n);
        op.activate({.activation = activation,
                     .gate = in.data(),
                     .up = gated ? in.data() + n : nullptr,
                     .in_stride = 2 * n,
                     .n = n,
                     .out = out.data(),
                     .out_stride = n},
                    0, rows);
        return out;
      };
      for (const bool gated : {true, false}) {
        if (!gated && activation == Activation::kClippedSwiglu) continue;
        const std::vector<float> out = run(ops(), gated);
        ASSERT_TRUE(SameBits(run(reference(), gated), out));
        for (int i = 0; i < n; ++i) {
          const double up = gated ? in[n + i] : 1.0;
          const double exact = ActivatedExactly(activation, in[i], up);
          // GELU by erf cancels for negative arguments, as it does in the reference.
          ASSERT_NEAR(out[i], exact, std::fabs(exact) * 3e-6 + std::fabs(up) * 1e-6) << in[i];
        }
      }
    }
  }
  testing::Random random(5);
  const std::vector<float> x = random.Floats(37), y = random.Floats(40);
  const auto run = [&](const Ops& op) {
    std::vector<float> sum = y;
    op.add(x.data(), sum.data(), 37);
    op.add_scaled(x.data(), 0.3f, sum.data(), 37);
    op.scale(sum.data(), 3.0f, 37);
    op.softcap(sum.data(), 2.5f, 37);
    return sum;
  };
  const std::vector<float> out = run(ops());
  EXPECT_TRUE(SameBits(run(reference()), out));
  for (int i = 0; i < 40; ++i) {
    const double sum = (double{y[i]} + 1.3 * x[std::min(i, 36)]) * 3;
    EXPECT_NEAR(out[i], i < 37 ? 2.5 * std::tanh(sum / 2.5) : y[i], 2e-6) << i;
  }
}

TEST_P(RowsTest, ActivationsOfExtremes) {
  // Every magnitude of gate, both signs; `up` is 1.
  std::vector<float> gate;
  for (int e = -149; e <= 127; ++e) {
    gate.push_back(std::ldexp(1.3f, e));
    gate.push_back(-std::ldexp(1.3f, e));
  }
  for (const float x : {0.0f, -0.0f, 87.0f, -87.0f, -86.99f, -88.0f, 88.0f, kInf}) {
    gate.push_back(x);
  }
  const std::vector<float> up(gate.size(), 1.0f);
  for (const Activation activation : kActivations) {
    const auto run = [&](const Ops& op) {
      std::vector<float> out(gate.size());
      op.activate({.activation = activation,
                   .gate = gate.data(),
                   .up = up.data(),
                   .n = static_cast<int>(gate.size()),
                   .out = out.data()},
                  0, 1);
      return out;
    };
    const std::vector<float> out = run(ops());
    EXPECT_TRUE(SameBits(run(reference()), out)) << static_cast<int>(activation);
    for (const float x : out) EXPECT_FALSE(std::isnan(x)) << static_cast<int>(activation);
  }
}

TEST_P(RowsTest, ANanStaysOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), one = 1.0f;
  for (const Activation activation : kActivations) {
    float out = 0;
    ops().activate({.activation = activation, .gate = &nan, .up = &one, .n = 1, .out = &out}, 0, 1);
    EXPECT_TRUE(std::isnan(out)) << static_cast<int>(activation);
  }
  float capped = nan;
  ops().softcap(&capped, 30.0f, 1);
  EXPECT_TRUE(std::isnan(capped));
}

TEST(ScalarMathTest, TanhAndErfWithinThreeUlp) {
  const auto near = [](float got, double exact, float x) {
    const float rounded = std::fabs(static_cast<float>(exact));
    const double ulp = double{std::nextafter(rounded, 2.0f)} - double{rounded};
    ASSERT_LE(std::fabs(got - exact), 3 * ulp) << x;
  };
  for (float x = -11.0f; x <= 11.0f; x += 0.000137f) {
    near(Tanh(x), std::tanh(double{x}), x);
    near(Erf(x), std::erf(double{x}), x);
  }
  for (const auto f : {Tanh, Erf}) {
    EXPECT_EQ(f(kInf), 1.0f);
    EXPECT_EQ(f(-kInf), -1.0f);
    EXPECT_EQ(f(0.0f), 0.0f);
    EXPECT_TRUE(std::isnan(f(std::numeric_limits<float>::quiet_NaN())));
  }
}

TEST(ScalarMathTest, ExpWithinTwoUlp) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(-kInf), 0.0f);
  EXPECT_EQ(Exp(-87.01f), 0.0f);
  EXPECT_GT(Exp(-87.0f), std::numeric_limits<float>::min());
  EXPECT_TRUE(std::isfinite(Exp(kInf)));
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
  for (float x = -87.0f; x <= 88.0f; x += 0.00137f) {
    const double exact = std::exp(double{x});
    ASSERT_NEAR(Exp(x) / exact, 1.0, 2 * 0x1p-23) << x;
  }
}

TEST(ScalarMathTest, LogWithinTwoUlp) {
  EXPECT_EQ(Log(1.0f), 0.0f);
  testing::Random random(4);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::ldexp(1.0f + std::fabs(random.Unit()), random.Int(-126, 126));
    const double exact = std::log(double{x});
    ASSERT_NEAR(Log(x), exact, std::fabs(exact) * 2 * 0x1p-23) << x;
  }
  for (int i = 1; i < 2000; ++i) {  // just below and above 1
    const float x = 1.0f + static_cast<float>(i - 1000) * 0x1p-23f;
    ASSERT_NEAR(Log(x), std::log(double{x}), std::fabs(std::log(double{x})) * 2 * 0x1p-23);
  }
}

TEST(ScalarMathTest, HalvesAndBf16) {
  for (int h = 0; h < 0x10000; ++h) {
    const int exponent = h >> 10 & 31;
    const int mantissa = h & 1023;
    const double sign = h & 0x8000 ? -1 : 1;
    const float x = HalfToFloat(static_cast<uint16_t>(h));
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(x), mantissa != 0);
    } else {
      const double exact =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(x, sign * exact) << h;
    }
    const float b = Bf16ToFloat(static_cast<uint16_t>(h));
    if (!std::isnan(b)) {
      ASSERT_EQ(FloatToBf16(b), h);
    }
  }
  EXPECT_EQ(FloatToBf16(BitsFloat(0x3F808000)), 0x3F80);  // tie to even
  EXPECT_EQ(FloatToBf16(BitsFloat(0x3F818000)), 0x3F82);
  EXPECT_EQ(FloatToBf16(BitsFloat(0x3F808001)), 0x3F81);
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(BitsFloat(0x7F800001)))));
}

TEST(NoiseTest, UniformAndIndependentOfItsNeighbours) {
  // Chi-square over 64 bins, 100,000 draws: mean 63, standard deviation 11.2.
  const NoiseKey key = MakeNoiseKey(1, 3);
  std::vector<int> bins(64);
  double sum = 0;
  for (uint32_t token = 0; token < 100000; ++token) {
    const float u = NoiseUniform(key, token);
    ASSERT_GT(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++bins[static_cast<int>(u * 64)];
    sum += GumbelNoise(key, token);
  }
  double chi = 0;
  for (const int count : bins) chi += (count - 1562.5) * (count - 1562.5) / 1562.5;
  EXPECT_LT(chi, 63 + 5 * 11.2);
  EXPECT_NEAR(sum / 100000, 0.5772, 0.02);  // Euler's constant, 1.28 / sqrt(n) = 0.004
  // Each part of the key changes the hash.
  EXPECT_NE(NoiseHash(key, 5), NoiseHash(MakeNoiseKey(0, 3), 5));
  EXPECT_NE(NoiseHash(key, 5), NoiseHash(MakeNoiseKey(1, 0), 5));
}

TEST(RopeTableTest, MatchesDoublePrecision) {
  const int dim = 64;
  const std::vector<float> frequencies = model::RopeFrequencies(dim, 1e5);
  const RopeTable table(131072, frequencies);
  for (const int position : {0, 1, 2, 100, 4095, 8191, 65535, 131071}) {
    for (int i = 0; i < dim / 2; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      const float* row = table.data() + int64_t{position} * dim;
      EXPECT_NEAR(row[i], std::cos(double{angle}), 1e-7);
      EXPECT_NEAR(row[dim / 2 + i], std::sin(double{angle}), 1e-7);
    }
  }
}

TEST(RegistryTest, NamesAndDetection) {
  const std::vector<Isa> isas = DetectIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kReference);
  EXPECT_EQ(*ParseIsa("auto"), isas.back());
  for (const Isa isa : isas) {
    EXPECT_EQ(*ParseIsa(GetOps(isa).name), isa);
    EXPECT_EQ(GetOps(isa).isa, isa);
  }
  EXPECT_EQ(ParseIsa("sse9").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseIsa("").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla::kernels
