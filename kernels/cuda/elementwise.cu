// activate and add: a block of threads for 256 numbers of a row.
#include "kernels/activated.h"
#include "kernels/cuda/launches.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 256;

FLOTILLA_KERNEL(kThreads)
ActivateKernel(const ActivateArgs args) {
  const int row = BlockX(), i = BlockY() * kThreads + Thread();
  if (i >= args.n) return;
  const int64_t at = row * args.in_stride + i;
  args.out[row * args.out_stride + i] =
      Activated(args.activation, args.gate[at], args.up == nullptr ? nullptr : args.up + at);
}

FLOTILLA_KERNEL(kThreads)
AddKernel(const AddArgs args) {
  const int row = BlockX(), i = BlockY() * kThreads + Thread();
  if (i >= args.n) return;
  args.y[row * args.y_stride + i] += args.x[row * args.x_stride + i];
}

constexpr int BlocksOf(int n) { return (n + kThreads - 1) / kThreads; }

}  // namespace

int Activate(const ActivateArgs& args, Stream stream) {
  return Launch<ActivateKernel, kThreads, NothingShared>(
      "activate", {.x = args.rows, .y = BlocksOf(args.n)}, args, stream);
}

int Add(const AddArgs& args, Stream stream) {
  return Launch<AddKernel, kThreads, NothingShared>("add", {.x = args.rows, .y = BlocksOf(args.n)},
                                                    args, stream);
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
