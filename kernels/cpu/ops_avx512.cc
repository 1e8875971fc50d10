#include "kernels/cpu/elementwise-inl.h"
#include "kernels/cpu/kv_write-inl.h"
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/vocabulary-inl.h"
#include "kernels/op_tables.h"
#include "kernels/reference/reference_ops.h"

namespace flotilla::kernels {

// Defined in matmul_avx512.cc and attention_avx512.cc.
template <class S>
void MatMulI16(const MatMulI16Args& args, int panel_begin, int panel_end);
template <class S>
void MatMulI8(const MatMulI8Args& args, int panel_begin, int panel_end);
template <class S>
void MatMulF32(const MatMulF32Args& args, int panel_begin, int panel_end);
template <class S>
void PagedAttention(const AttentionArgs& args, int token_begin, int token_end);

extern const Ops kAvx512Ops = {
    .isa = Isa::kAvx512,
    .name = "avx512",
    .description = "AVX-512 F, BW, VL, DQ, VNNI",
    .quantize_rows = QuantizeRows<Avx512>,
    .matmul_i16 = MatMulI16<Avx512>,
    .matmul_i8 = MatMulI8<Avx512>,
    .matmul_f32 = MatMulF32<Avx512>,
    .rms_norm = RmsNorm<Avx512>,
    .layer_norm = LayerNorm<Avx512>,
    .rope = Rope<Avx512>,
    .activate = Activate<Avx512>,
    .choose_experts = reference::ChooseExperts,
    .add = Add<Avx512>,
    .add_scaled = AddScaled<Avx512>,
    .scale = Scale<Avx512>,
    .softcap = Softcap<Avx512>,
    .kv_write = KvWrite<Avx512>,
    .kv_seal = KvSeal<Avx512>,
    .paged_attention = PagedAttention<Avx512>,
    .argmax = ArgMax<Avx512>,
    .top_n = TopN<Avx512>,
    .gumbel_argmax = GumbelArgMax<Avx512>,
    .softmax_stats = ComputeSoftmaxStats<Avx512>,
};

}  // namespace flotilla::kernels
