// rms_norm: a block of 64 threads for each run of a row, which are the 64 lanes of its sum.
#include <cmath>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/reduce.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 64;

struct NormShared {
  float lanes[kThreads / 2];
  float inverse;
};

FLOTILLA_KERNEL(kThreads)
RmsNormKernel(const RmsNormArgs args) {
  NormShared& shared = Shared<NormShared>();
  const int row = BlockX(), head = BlockY(), lane = Thread();
  const int x_row = args.x_rows == nullptr ? row : args.x_rows[row];
  const float* const x = args.x + x_row * args.x_stride + head * args.x_head_stride;
  float* const out = args.out + row * args.out_stride + head * args.out_head_stride;
  float sum = 0;
  for (int i = lane; i < args.n; i += kThreads) sum = std::fma(x[i], x[i], sum);
  if (lane >= kThreads / 2) shared.lanes[lane - kThreads / 2] = sum;
  SyncThreads();
  if (lane < kThreads / 2) {
    sum = LaneTree<kThreads / 2>(sum + shared.lanes[lane]);
    if (lane == 0) {
      const float mean = sum / static_cast<float>(args.n);
      shared.inverse = 1.0f / std::sqrt(mean + args.eps);
    }
  }
  SyncThreads();
  const float inverse = shared.inverse;
  for (int i = lane; i < args.n; i += kThreads) out[i] = x[i] * inverse * args.weight[i];
}

}  // namespace

int RmsNorm(const RmsNormArgs& args, Stream stream) {
  return Launch<RmsNormKernel, kThreads, NormShared>("rms_norm", {.x = args.rows, .y = args.heads},
                                                     args, stream);
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
