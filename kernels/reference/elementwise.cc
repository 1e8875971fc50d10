// Row-wise ops of the forward pass.
#include <cmath>

#include "kernels/activated.h"
#include "kernels/reference/lanes.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels::reference {

void RmsNorm(const RmsNormArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    float lanes[64] = {};
    for (int i = 0; i < args.n; ++i) lanes[i % 64] = std::fma(x[i], x[i], lanes[i % 64]);
    const float mean = LaneTree(lanes) / static_cast<float>(args.n);
    const float inverse = 1.0f / std::sqrt(mean + args.eps);
    for (int i = 0; i < args.n; ++i) out[i] = x[i] * inverse * args.weight[i];
  }
}

void Rope(const RopeArgs& args, int token_begin, int token_end) {
  for (int token = token_begin; token < token_end; ++token) {
    const float* cosines = args.table + static_cast<int64_t>(args.positions[token]) * args.dim;
    const float* sines = cosines + args.dim / 2;
    for (int head = 0; head < args.heads; ++head) {
      float* x = args.x + token * args.token_stride + head * args.head_stride;
      for (int i = 0; i < args.dim / 2; ++i) {
        const float a = x[2 * i];
        const float b = x[2 * i + 1];
        x[2 * i] = std::fma(a, cosines[i], -(b * sines[i]));
        x[2 * i + 1] = std::fma(b, cosines[i], a * sines[i]);
      }
    }
  }
}

void LayerNorm(const LayerNormArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    const auto n = static_cast<float>(args.n);
    float lanes[64] = {};
    for (int i = 0; i < args.n; ++i) lanes[i % 64] += x[i];
    const float mean = LaneTree(lanes) / n;
    float squares[64] = {};
    for (int i = 0; i < args.n; ++i) {
      const float d = x[i] - mean;
      squares[i % 64] = std::fma(d, d, squares[i % 64]);
    }
    const float inverse = 1.0f / std::sqrt(LaneTree(squares) / n + args.eps);
    for (int i = 0; i < args.n; ++i) {
      const float normed = (x[i] - mean) * inverse;
      out[i] = args.bias == nullptr ? normed * args.weight[i]
                                    : std::fma(normed, args.weight[i], args.bias[i]);
    }
  }
}

void Activate(const ActivateArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* gate = args.gate + row * args.in_stride;
    const float* up = args.up == nullptr ? nullptr : args.up + row * args.in_stride;
    float* out = args.out + row * args.out_stride;
    for (int i = 0; i < args.n; ++i) {
      out[i] = Activated(args.activation, gate[i], up == nullptr ? nullptr : up + i);
    }
  }
}

void Add(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void AddScaled(const float* x, float factor, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::fma(factor, x[i], y[i]);
}

void Scale(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void Softcap(float* x, float cap, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = cap * Tanh(x[i] / cap);
}

}  // namespace flotilla::kernels::reference
