// Weights and inputs that go together, for the methods that know inputs.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"
#include "kernels/ops.h"
#include "quantize/importance.h"
#include "tests/support/random.h"

namespace flotilla::quantize {

inline void OneThread(int64_t count, absl::FunctionRef<void(int64_t)> fn) {
  for (int64_t i = 0; i < count; ++i) fn(i);
}
// Not in the order of the items.
inline void Backwards(int64_t count, absl::FunctionRef<void(int64_t)> fn) {
  while (count-- > 0) fn(count);
}

struct SmallProblem {
  // Inputs depend on each other, and some are much larger than others.
  SmallProblem(uint64_t seed, int64_t row_count, int64_t input_count, int64_t sample_count)
      : rows(row_count), inputs(input_count), samples(sample_count) {
    testing::Random random(seed);
    weights = random.Floats(static_cast<size_t>(rows * inputs), 0.1f);
    x.resize(static_cast<size_t>(samples * inputs));
    std::vector<float> sizes;
    for (int64_t k = 0; k < inputs; ++k) sizes.push_back(k % 9 == 0 ? 4.0f : 0.3f);
    for (int64_t row = 0; row < samples; ++row) {
      float before = 0;
      for (int64_t k = 0; k < inputs; ++k) {
        const float own = random.Unit();
        before = 0.6f * before + own;
        x[static_cast<size_t>(row * inputs + k)] = before * sizes[static_cast<size_t>(k)];
      }
    }
    importance = std::make_unique<Importance>(inputs, kernels::GetOps(kernels::Isa::kReference));
    EXPECT_TRUE(importance->Add(x.data(), samples, inputs, OneThread).ok());
  }

  // The squares of what errors of the weights change in the outputs, by the definition.
  template <class Matrix>
  double ErrorOf(const Matrix& quantized) const {
    double sum = 0;
    for (int64_t s = 0; s < samples; ++s) {
      for (int64_t r = 0; r < rows; ++r) {
        double output = 0;
        for (int64_t k = 0; k < inputs; ++k) {
          const double error = quantized.At(r, k) - weights[static_cast<size_t>(r * inputs + k)];
          output += error * x[static_cast<size_t>(s * inputs + k)];
        }
        sum += output * output;
      }
    }
    return sum;
  }

  const int64_t rows, inputs, samples;
  std::vector<float> weights, x;
  std::unique_ptr<Importance> importance;
};

}  // namespace flotilla::quantize
