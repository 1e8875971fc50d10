// The op interface: every computation of the forward pass and of the sampler's
// vocabulary passes, one declaration each.
//
// Use: the worker picks one table with GetOps and calls through it from its
// compute threads. Ops never start threads, allocate or fail. A call does the
// part of the work that its range names. Results do not depend on how ranges
// are cut, on which thread runs them or on the other rows in the batch.
//
// Exactness: all instruction paths give the same bits as `reference`, their slow and
// obvious twin (only the payload of a NaN may differ). Each op therefore states
// the order of its float reductions. "Lanes" are 16 partial results: element i
// goes to lane i mod 16; "the lane tree" adds lane i and i+8, then i and i+4, i
// and i+2, i and i+1. "64 lanes" are the same with lane i mod 64, and a tree that adds
// lane i and i+32 first, then i and i+16. `fma` rounds once.
//
// Preconditions are the caller's invariants and are not checked here. Pointers
// need no alignment beyond their element's, except packed weights and KV records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/activation.h"
#include "common/types/expert_scores.h"
#include "kernels/activated.h"
#include "kernels/kv_layout.h"
#include "kernels/noise.h"
#include "kernels/packed_matrix.h"
#include "kernels/row_scores.h"

namespace flotilla::kernels {

// Rows of activations as 16-bit integers, one scale per (row, split). The worker
// owns the arrays: QuantizeRows writes them, matmul_i16 reads them.
// x[row, i] ~ scales[row, split of i] * values[row, i].
//
// Rows of 8 bits lie in the same arrays: the k values of a row are int8 at the begin of its place,
// and the sum of a split's values is where the sum of its first group would be.
struct QuantizedRows {
  int16_t* values = nullptr;    // [rows, k], within +-32767
  float* group_sums = nullptr;  // [rows, k / kSumSpan] the sums of each group and of its first half
  float* scales = nullptr;      // [rows, splits]

  FLOTILLA_INLINE int8_t* bytes(int row, int k) const {
    return reinterpret_cast<int8_t*>(values + static_cast<int64_t>(row) * k);
  }
};

// quantize_rows: fp32 rows to QuantizedRows. Per row and split: scale = max|x| /
// 32767, value = round-half-even(x * (32767 / max|x|)). A split with max|x| below
// 1e-30 becomes zeros with scale 0; one with a NaN or infinity becomes zeros with
// scale NaN, so that its products are NaN.
//
// With activations of 8 bits: kDynamic is the same with 127 in the place of 32767. kStatic has the
// scale of the scheme, and value = round-half-even(x / scale + zero, within -128 and 127); a split
// with a NaN or infinity as above.
struct QuantizeArgs {
  const float* x = nullptr;  // [rows, k] fp32
  int64_t x_stride = 0;      // floats from row to row
  int k = 0;                 // multiple of 32
  int split_count = 1;       // as MatrixView
  const int32_t* split_ends = nullptr;
  ActivationScheme activations;  // that of the matrix; kNone: 16 bits
  QuantizedRows out;
};

// matmul_i16: out[m, c] (+)= sum of x[m, :] * W[c, :] with integer dot products
// (kinds with HasIntegerProduct only). Per split, blocks of 32 ascending, each added to
// acc by fma in the order that the kind's AddBlock states (kernels/packing/); partial =
// scale * acc; partials are added in the split tree. Panels of 32 columns.
struct MatMulI16Args {
  MatrixView weights;
  QuantizedRows x;          // quantised with the matrix's splits
  int rows = 0;             // M
  float* out = nullptr;     // [rows, columns] fp32
  int64_t out_stride = 0;   // floats from row to row
  bool accumulate = false;  // out + product instead of product (residual add)
};

// matmul_i8: the same product of int8 (kinds with HasInt8Product only). Per split, dot = the sum of
// (value - zero of the activations) * (code - zero of the weights) in 32 bits, which hold it
// (MostInt8Inputs); partial = scale of the row * (scale of the column * dot); partials are added in
// the split tree.
using MatMulI8Args = MatMulI16Args;

// matmul_f32: the same product in fp32. Weights are the exact values of their
// format; per split acc = fma(x, w, acc), k ascending; then the split tree.
struct MatMulF32Args {
  MatrixView weights;
  const float* x = nullptr;  // [rows, k] fp32
  int64_t x_stride = 0;
  int rows = 0;
  float* out = nullptr;  // [rows, columns] fp32
  int64_t out_stride = 0;
  bool accumulate = false;
};

// rms_norm: out = x * (1 / sqrt(sum(x^2) / n + eps)) * weight, left to right. The
// sum runs in 64 lanes by fma, then their tree. `out` may be `x`.
struct RmsNormArgs {
  const float* x = nullptr;  // [rows, n] fp32
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [n]
  int n = 0;
  float eps = 0;
  float* out = nullptr;  // [rows, n]
  int64_t out_stride = 0;
};

// layer_norm: mean = sum(x) / n, d = x - mean, inverse = 1 / sqrt(sum(d^2) / n + eps), each sum in
// 64 lanes (the squares by fma), then their tree. out = fma(d * inverse, weight, bias); without a
// bias d * inverse * weight. `out` may be `x`.
struct LayerNormArgs {
  const float* x = nullptr;  // [rows, n] fp32
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [n]
  const float* bias = nullptr;    // [n]; null: none
  int n = 0;
  float eps = 0;
  float* out = nullptr;  // [rows, n]
  int64_t out_stride = 0;
};

// rope: rotates, in place, the pairs (2i, 2i+1) of the first `dim` elements of every head by the
// token's position: (a, b) -> (fma(a, cos, -(b * sin)), fma(b, cos, a * sin)). Row p of
// the table is cos[dim/2] then sin[dim/2]; see RopeTable.
struct RopeArgs {
  float* x = nullptr;  // [tokens, heads, head_stride] fp32
  int64_t token_stride = 0;
  int heads = 0;
  int64_t head_stride = 0;             // floats from head to head, at least dim
  int dim = 0;                         // multiple of 16
  const int32_t* positions = nullptr;  // [tokens]
  const float* table = nullptr;        // [positions, dim]
};

// activate: out = f(gate) * up, or f(gate) without an up. f is, left to right,
//   kSilu       gate / (1 + Exp(-gate))
//   kGelu       (1 + Erf(gate * sqrt(1/2))) * (gate * 0.5)
//   kGeluTanh   gate / (1 + Exp(gate * fma(gate * gate, kGeluCubic, kGeluLinear)))
//   kRelu       0 > gate ? 0 : gate
// kClippedSwiglu: g = min(7, gate), u = min(7, max(-7, up)); out = g / (1 + Exp(-1.702 * g)) *
// (u + 1). A NaN stays one. `out` may be `gate` or `up`.
struct ActivateArgs {
  Activation activation = Activation::kSilu;
  const float* gate = nullptr;  // [rows, n] fp32
  const float* up = nullptr;    // [rows, n] fp32; null: none
  int64_t in_stride = 0;        // of gate and of up
  int n = 0;
  float* out = nullptr;  // [rows, n]
  int64_t out_stride = 0;
};

// choose_experts: the experts that each row goes through, ascending, and their weights. x is a row
// of the router's logits; maxima and sums run over experts ascending.
//   score: kSoftmax Exp(x - max) / the sum of these; kSigmoid 1 / (1 + Exp(-x)); kChosenSoftmax x.
//   merit = score, + bias if there is one; a NaN counts as -infinity.
//   With groups, which are equal parts of the experts: the merit of a group is its largest one, or
//   with group_pairs the sum of its two largest. Outside of the best kept_groups merits become 0.
//   The `chosen` largest merits win, and of equal ones those with the lower id; so do groups.
//   weight = score; for kChosenSoftmax Exp(x - max) / the sum of these, both of the chosen. If
//   `normalised`, it is divided by (kLeastWeight + the sum of weights). At last it is multiplied by
//   the factor.
inline constexpr int kMostExperts = 1024;
inline constexpr float kLeastWeight = 1e-20f;
struct ChooseExpertsArgs {
  const float* logits = nullptr;  // [rows, experts] fp32
  int64_t stride = 0;             // floats from row to row
  int experts = 0;                // at most kMostExperts
  int chosen = 0;                 // at most `experts`
  ExpertScores scores = ExpertScores::kSoftmax;
  const float* bias = nullptr;  // [experts]; null: none
  int groups = 1;               // experts is a multiple of it
  int kept_groups = 1;
  bool group_pairs = false;
  bool normalised = false;
  float factor = 1;
  int32_t* ids = nullptr;    // [rows, chosen]
  float* weights = nullptr;  // [rows, chosen]
};

// One sequence's view of the KV cache of one layer, laid out as kv_layout.h says. What block b has
// of KV head h begins at base + b * block_stride + h * head_stride bytes, 64-byte aligned.
struct KvView {
  KvFormat format = KvFormat::kBf16;
  KvDims dims;
  std::byte* base = nullptr;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int block_tokens = kKvRecordTokens;    // or kKvRunTokens
  const int32_t* block_table = nullptr;  // block ids, from that of block first_block on
  int first_block = 0;
};

// The bf16 view of the open runs of a sequence, whose blocks are runs. It has those that the rows
// of the call are in. The first of its table also has K and V of position 0 (kv_layout.h). Without
// a base where the format has no runs.
//
// kv_write: encodes K and V of consecutive tokens of one sequence into the
// cache, those that are kept by runs into the open runs. The first write of a bf16 V pair zeroes
// its other half. Where the call has position 0, what is kept by runs is written as that, too.
struct KvWriteArgs {
  KvView cache;
  KvView open;
  int first_position = 0;    // absolute position of token 0
  int heads = 0;             // KV heads
  const float* k = nullptr;  // [tokens, heads, dims.key] fp32, after RoPE
  const float* v = nullptr;  // [tokens, heads, dims.value] fp32; unused where V is a prefix of K
  int64_t token_stride = 0;  // floats from token to token, of k and of v
  // The scales of what is kept in fp8, from 1e-30 to 1e30; 0: each token has its own.
  float key_scale = 0;
  float value_scale = 0;
};

// kv_seal: encodes a full open run into the cache: K and V, or the one that is kept by runs. As
// later runs do not see the codes of position 0, K of position 1 is encoded in its place.
struct KvSealArgs {
  KvView cache;
  KvView open;
  int run = 0;  // positions 64 run to 64 run + 63
};

// paged_attention: out = softmax(scale * q K^T) V for consecutive query tokens of
// one sequence and the query heads that share one KV head. Token t sees the keys
// at positions 0 ..= first_position + t, or the last `window` of these, all read from the cache. K
// and V that are kept by runs are read from the open run if the key is in the token's own run. If
// it is in an earlier one they are read from the cache, and those of position 0 where open runs
// have them.
//
// The result for a (token, head) is a function of its position, its q and those
// keys alone:
//   q' = q * scale; score = fma over d ascending of q'[d] * K[d].
//   With a softcap: score = softcap * Tanh(score / softcap).
//   With a slope: score = fma(slope, key position - query position, score).
//   Positions run in segments of 256 and tiles of 64, which begin at multiples of these; those
//   without a key that the token sees are left out. A tile: m' = max(m, its
//   scores); when m' > m: c = Exp(m - m'), l *= c, o *= c (skipped for a
//   segment's first tile). p = Exp(score - m') (0 for keys that the token does not see); l += lane
//   tree of ((p[0:16] + p[16:32]) + (p[32:48] + p[48:64])); o = fma(p, v, o),
//   keys ascending.
//   Segments merge in ascending order: M' = max(M, m); a = Exp(M - M'),
//   b = Exp(m - M'); L = fma(L, a, l * b), O = fma(O, a, o * b).
//   With a sink, which is one more score without a value: M' = max(M, sink), a = Exp(M - M');
//   L = fma(L, a, Exp(sink - M')), O = O * a.
//   out = O * (1 / L).
// Keys that no token of the call sees are masked before use, and blocks that have only such keys
// are not read.
struct AttentionArgs {
  KvView cache;
  KvView open;
  int kv_head = 0;
  int first_position = 0;         // absolute position of query token 0
  int heads = 0;                  // query heads of this KV head
  const float* q = nullptr;       // [tokens, heads, dims.key] fp32, after RoPE, not scaled
  int64_t q_stride = 0;           // floats from token to token
  float scale = 0;                // 1 / sqrt(dim)
  int window = 0;                 // 0: all earlier keys
  float softcap = 0;              // 0: none
  const float* slopes = nullptr;  // [heads]; null: none (ALiBi, arXiv 2108.12409)
  const float* sinks = nullptr;   // [heads]; null: none
  int out_dim = 0;                // elements of a result that are written, at most dims.value
  float* out = nullptr;           // [tokens, heads, out_dim] fp32
  int64_t out_stride = 0;
};

// gumbel_argmax: the token with the largest fma(logit, inverse_temperature,
// GumbelNoise(key, token)) among those kept: logit > cutoff.score, or equal to it
// with token <= cutoff.token. The default cutoff keeps all. For a part of a row,
// logits[0] is the logit of `first_token`; `key`, `cutoff` and the result still use token
// ids of the whole vocabulary.
struct GumbelArgs {
  float inverse_temperature = 1;
  NoiseKey key;
  TokenScore cutoff{INT32_MAX, -std::numeric_limits<float>::infinity()};
  int32_t first_token = 0;
};

enum class Isa : uint8_t { kReference, kAvx2, kAvx512 };

// One implementation of every op. Ranges are half open.
struct Ops {
  Isa isa;
  std::string_view name;         // "reference", "avx2", "avx512"
  std::string_view description;  // the instruction sets it needs

  void (*quantize_rows)(const QuantizeArgs&, int row_begin, int row_end);
  void (*matmul_i16)(const MatMulI16Args&, int panel_begin, int panel_end);
  void (*matmul_i8)(const MatMulI8Args&, int panel_begin, int panel_end);
  void (*matmul_f32)(const MatMulF32Args&, int panel_begin, int panel_end);
  void (*rms_norm)(const RmsNormArgs&, int row_begin, int row_end);
  void (*layer_norm)(const LayerNormArgs&, int row_begin, int row_end);
  void (*rope)(const RopeArgs&, int token_begin, int token_end);
  void (*activate)(const ActivateArgs&, int row_begin, int row_end);
  void (*choose_experts)(const ChooseExpertsArgs&, int row_begin, int row_end);
  // y[i] += x[i].
  void (*add)(const float* x, float* y, int64_t n);
  // y[i] = fma(factor, x[i], y[i]).
  void (*add_scaled)(const float* x, float factor, float* y, int64_t n);
  // x[i] *= factor.
  void (*scale)(float* x, float factor, int64_t n);
  // x[i] = cap * Tanh(x[i] / cap).
  void (*softcap)(float* x, float cap, int64_t n);
  void (*kv_write)(const KvWriteArgs&, int token_begin, int token_end);
  void (*kv_seal)(const KvSealArgs&, int head_begin, int head_end);
  void (*paged_attention)(const AttentionArgs&, int token_begin, int token_end);

  // Vocabulary passes over a row of n >= 1 logits. Of equal scores the lowest id wins. A
  // NaN never wins. A row without any number above -infinity gives its first token.
  TokenScore (*argmax)(const float* logits, int n);
  // The `count` (1..64, <= n) largest, in descending order.
  void (*top_n)(const float* logits, int n, int count, TokenScore* out);
  TokenScore (*gumbel_argmax)(const float* logits, int n, const GumbelArgs& args);
  // Per chunk of kVocabularyChunk: max, then e^(x - max) summed in lanes and the lane tree;
  // the chunks' results are merged (MergeStats) in a binary tree like splits.
  SoftmaxStats (*softmax_stats)(const float* logits, int n);
};

// Every implementation of this build, slowest first.
absl::Span<const Ops* const> AllOps();

// True when this machine can run `isa`. avx2 needs AVX2, FMA and F16C; avx512
// needs F, BW, VL, DQ and VNNI.
bool IsaSupported(Isa isa);

// The instruction paths that this machine supports, slowest first; "auto" means the last.
std::vector<Isa> DetectIsas();

// Parses "auto" (the best supported), "reference", "avx2" or "avx512". InvalidArgument:
// the name is unknown (the message lists the known ones); FailedPrecondition: the machine
// does not support it.
absl::StatusOr<Isa> ParseIsa(std::string_view name);

// The table of `isa`, which must be supported. Lives for the whole program.
const Ops& GetOps(Isa isa);

}  // namespace flotilla::kernels
