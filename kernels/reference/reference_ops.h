// The obvious implementation of every op, in plain scalar loops. It defines what is
// correct. These declarations serve the table in reference_ops.cc; the other tables take
// ChooseExperts from here, too.
#pragma once

#include "kernels/ops.h"

namespace flotilla::kernels::reference {

void QuantizeRows(const QuantizeArgs& args, int row_begin, int row_end);
void MatMulI16(const MatMulI16Args& args, int panel_begin, int panel_end);
void MatMulI8(const MatMulI8Args& args, int panel_begin, int panel_end);
void MatMulF32(const MatMulF32Args& args, int panel_begin, int panel_end);
void RmsNorm(const RmsNormArgs& args, int row_begin, int row_end);
void Rope(const RopeArgs& args, int token_begin, int token_end);
void LayerNorm(const LayerNormArgs& args, int row_begin, int row_end);
void Activate(const ActivateArgs& args, int row_begin, int row_end);
void ChooseExperts(const ChooseExpertsArgs& args, int row_begin, int row_end);
void Add(const float* x, float* y, int64_t n);
void AddScaled(const float* x, float factor, float* y, int64_t n);
void Scale(float* x, float factor, int64_t n);
void Softcap(float* x, float cap, int64_t n);
void KvWrite(const KvWriteArgs& args, int token_begin, int token_end);
void KvSeal(const KvSealArgs& args, int head_begin, int head_end);
void PagedAttention(const AttentionArgs& args, int token_begin, int token_end);
TokenScore ArgMax(const float* logits, int n);
void TopN(const float* logits, int n, int count, TokenScore* out);
TokenScore GumbelArgMax(const float* logits, int n, const GumbelArgs& args);
SoftmaxStats ComputeSoftmaxStats(const float* logits, int n);

}  // namespace flotilla::kernels::reference
