// kv_write: a block of threads for each row and KV head.
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/launches.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 64;

template <class Kv>
FLOTILLA_KERNEL(kThreads)
KvWriteKernel(const KvWriteArgs args) {
  const int row = BlockX(), head = BlockY(), dim = args.cache.dim;
  auto* const key = KeyOf<Kv>(args.cache, args.sequences[row], head, args.positions[row]);
  auto* const value = key + ToValue(args.cache);
  const int64_t from = row * args.row_stride + head * dim;
  for (int d = Thread(); d < dim; d += kThreads) {
    key[d] = Kv::Store(args.k[from + d]);
    value[d] = Kv::Store(args.v[from + d]);
  }
}

}  // namespace

int KvWrite(const KvWriteArgs& args, Stream stream) {
  return VisitKv(args.cache.type, [&]<class Kv>() {
    return Launch<KvWriteKernel<Kv>, kThreads, NothingShared>(
        "kv_write", {.x = args.rows, .y = args.heads}, args, stream);
  });
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
