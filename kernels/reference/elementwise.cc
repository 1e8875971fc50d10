// Row-wise ops of the forward pass.
#include <cmath>

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
      float* x = args.x + token * args.token_stride + head * args.dim;
      for (int i = 0; i < args.dim / 2; ++i) {
        const float a = x[2 * i];
        const float b = x[2 * i + 1];
        x[2 * i] = std::fma(a, cosines[i], -(b * sines[i]));
        x[2 * i + 1] = std::fma(b, cosines[i], a * sines[i]);
      }
    }
  }
}

void SiluMul(const SiluMulArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* gate = args.gate + row * args.in_stride;
    const float* up = args.up + row * args.in_stride;
    float* out = args.out + row * args.out_stride;
    for (int i = 0; i < args.n; ++i) out[i] = gate[i] / (1.0f + Exp(-gate[i])) * up[i];
  }
}

void Add(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

}  // namespace flotilla::kernels::reference
