#include "kernels/cpu/elementwise-inl.h"
#include "kernels/cpu/kv_write-inl.h"
#include "kernels/cpu/simd_avx2.h"
#include "kernels/cpu/vocabulary-inl.h"
#include "kernels/op_tables.h"
#include "kernels/reference/reference_ops.h"

namespace flotilla::kernels {

// Defined in matmul_avx2.cc and attention_avx2.cc.
template <class S>
void MatMulI16(const MatMulI16Args& args, int panel_begin, int panel_end);
template <class S>
void MatMulI8(const MatMulI8Args& args, int panel_begin, int panel_end);
template <class S>
void MatMulF32(const MatMulF32Args& args, int panel_begin, int panel_end);
template <class S>
void PagedAttention(const AttentionArgs& args, int token_begin, int token_end);

extern const Ops kAvx2Ops = {
    .isa = Isa::kAvx2,
    .name = "avx2",
    .description = "AVX2, FMA, F16C",
    .quantize_rows = QuantizeRows<Avx2>,
    .matmul_i16 = MatMulI16<Avx2>,
    .matmul_i8 = MatMulI8<Avx2>,
    .matmul_f32 = MatMulF32<Avx2>,
    .rms_norm = RmsNorm<Avx2>,
    .layer_norm = LayerNorm<Avx2>,
    .rope = Rope<Avx2>,
    .activate = Activate<Avx2>,
    .choose_experts = reference::ChooseExperts,
    .add = Add<Avx2>,
    .add_scaled = AddScaled<Avx2>,
    .scale = Scale<Avx2>,
    .softcap = Softcap<Avx2>,
    .kv_write = KvWrite<Avx2>,
    .kv_seal = KvSeal<Avx2>,
    .paged_attention = PagedAttention<Avx2>,
    .argmax = ArgMax<Avx2>,
    .top_n = TopN<Avx2>,
    .gumbel_argmax = GumbelArgMax<Avx2>,
    .softmax_stats = ComputeSoftmaxStats<Avx2>,
};

}  // namespace flotilla::kernels
