#include "kernels/cuda/ops.h"

#include "kernels/cuda/launches.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {

extern const Ops kOps = {
    .rms_norm = RmsNorm,
    .quantize_rows = QuantizeRows,
    .matmul_i16 = MatMulI16,
    .matmul_f32 = MatMulF32,
    .rope = Rope,
    .activate = Activate,
    .add = Add,
    .kv_write = KvWrite,
    .paged_attention = PagedAttention,
    .argmax = ArgMax,
    .top_n = TopN,
    .gumbel_argmax = GumbelArgMax,
    .softmax_stats = ComputeSoftmaxStats,
    .logits_of = LogitsOf,
};

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
