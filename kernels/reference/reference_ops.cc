#include "kernels/reference/reference_ops.h"

#include "kernels/op_tables.h"

namespace flotilla::kernels {

extern const Ops kReferenceOps = {
    .isa = Isa::kReference,
    .name = "reference",
    .description = "scalar loops (FMA, F16C)",
    .quantize_rows = reference::QuantizeRows,
    .matmul_i16 = reference::MatMulI16,
    .matmul_i8 = reference::MatMulI8,
    .matmul_f32 = reference::MatMulF32,
    .rms_norm = reference::RmsNorm,
    .layer_norm = reference::LayerNorm,
    .rope = reference::Rope,
    .activate = reference::Activate,
    .choose_experts = reference::ChooseExperts,
    .add = reference::Add,
    .add_scaled = reference::AddScaled,
    .scale = reference::Scale,
    .softcap = reference::Softcap,
    .kv_write = reference::KvWrite,
    .kv_seal = reference::KvSeal,
    .paged_attention = reference::PagedAttention,
    .argmax = reference::ArgMax,
    .top_n = reference::TopN,
    .gumbel_argmax = reference::GumbelArgMax,
    .softmax_stats = reference::ComputeSoftmaxStats,
};

}  // namespace flotilla::kernels
