// What the files of this folder define: one launch for each op of ops.h.
#pragma once

#include "kernels/cuda/simt.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {

int RmsNorm(const RmsNormArgs& args, Stream stream);
int QuantizeRows(const QuantizeArgs& args, Stream stream);
int MatMulI16(const MatMulI16Args& args, Stream stream);
int MatMulF32(const MatMulF32Args& args, Stream stream);
int Rope(const RopeArgs& args, Stream stream);
int Activate(const ActivateArgs& args, Stream stream);
int Add(const AddArgs& args, Stream stream);
int KvWrite(const KvWriteArgs& args, Stream stream);
int PagedAttention(const AttentionArgs& args, Stream stream);
int ArgMax(const ArgMaxArgs& args, Stream stream);
int TopN(const TopNArgs& args, Stream stream);
int GumbelArgMax(const GumbelArgMaxArgs& args, Stream stream);
int ComputeSoftmaxStats(const SoftmaxStatsArgs& args, Stream stream);
int LogitsOf(const LogitsOfArgs& args, Stream stream);

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
