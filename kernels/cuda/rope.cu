// rope: a block of threads for each row and head, with a thread for each pair.
#include <cmath>

#include "kernels/cuda/launches.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 64;

FLOTILLA_KERNEL(kThreads)
RopeKernel(const RopeArgs args) {
  const int row = BlockX(), head = BlockY();
  const float* const cosines = args.table + int64_t{args.positions[row]} * args.dim;
  const float* const sines = cosines + args.dim / 2;
  float* const x = args.x + row * args.row_stride + head * args.head_stride;
  for (int i = Thread(); i < args.dim / 2; i += kThreads) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = std::fma(a, cosines[i], -(b * sines[i]));
    x[2 * i + 1] = std::fma(b, cosines[i], a * sines[i]);
  }
}

}  // namespace

int Rope(const RopeArgs& args, Stream stream) {
  return Launch<RopeKernel, kThreads, NothingShared>("rope", {.x = args.rows, .y = args.heads},
                                                     args, stream);
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
