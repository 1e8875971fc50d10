#include "tests/kernels/cuda/host_ops.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/weight_kind.h"
#include "kernels/ops.h"
#include "kernels/packing/kinds.h"

namespace flotilla::kernels::cuda {
namespace {

const kernels::Ops& Host() {
  static const kernels::Ops& ops = GetOps(DetectIsas().back());
  return ops;
}

MatrixView ViewOf(const Matrix& matrix) {
  MatrixView view{.columns = matrix.columns,
                  .k = matrix.k,
                  .split_count = matrix.split_count,
                  .split_ends = matrix.split_ends,
                  .panels_begin = matrix.panels,
                  .panel_bytes = matrix.panel_bytes};
  for (int i = 0; i < 256; ++i) {
    const auto kind = static_cast<PackedKind>(i);
    if (WeightKindOf(kind) != matrix.kind) continue;
    view.kind = kind;
    VisitKind(kind, [&]<class Kind>() { view.record_bytes = Kind::kRecordBytes; });
    break;
  }
  return view;
}

int RmsNorm(const RmsNormArgs& a, Stream) {
  for (int i = 0; i < a.rows * a.heads; ++i) {
    const int row = i / a.heads, head = i % a.heads;
    const int x_row = a.x_rows == nullptr ? row : a.x_rows[row];
    Host().rms_norm({.x = a.x + x_row * a.x_stride + head * a.x_head_stride,
                     .x_stride = a.x_stride,
                     .weight = a.weight,
                     .n = a.n,
                     .eps = a.eps,
                     .out = a.out + row * a.out_stride + head * a.out_head_stride,
                     .out_stride = a.out_stride},
                    0, 1);
  }
  return 0;
}

int QuantizeRows(const QuantizeArgs& a, Stream) {
  Host().quantize_rows({.x = a.x,
                        .x_stride = a.x_stride,
                        .k = a.k,
                        .split_count = a.split_count,
                        .split_ends = a.split_ends,
                        .out = {a.out.values, a.out.group_sums, a.out.scales}},
                       0, a.rows);
  return 0;
}

int MatMulI16(const MatMulI16Args& a, Stream) {
  const MatrixView view = ViewOf(a.weights);
  Host().matmul_i16({.weights = view,
                     .x = {a.x.values, a.x.group_sums, a.x.scales},
                     .rows = a.rows,
                     .out = a.out,
                     .out_stride = a.out_stride,
                     .accumulate = a.accumulate},
                    0, view.panels());
  return 0;
}

int MatMulF32(const MatMulF32Args& a, Stream) {
  const MatrixView view = ViewOf(a.weights);
  Host().matmul_f32({.weights = view,
                     .x = a.x,
                     .x_stride = a.x_stride,
                     .rows = a.rows,
                     .out = a.out,
                     .out_stride = a.out_stride,
                     .accumulate = a.accumulate},
                    0, view.panels());
  return 0;
}

int Rope(const RopeArgs& a, Stream) {
  Host().rope({.x = a.x,
               .token_stride = a.row_stride,
               .heads = a.heads,
               .head_stride = a.head_stride,
               .dim = a.dim,
               .positions = a.positions,
               .table = a.table},
              0, a.rows);
  return 0;
}

int Activate(const ActivateArgs& a, Stream) {
  Host().activate({.activation = a.activation,
                   .gate = a.gate,
                   .up = a.up,
                   .in_stride = a.in_stride,
                   .n = a.n,
                   .out = a.out,
                   .out_stride = a.out_stride},
                  0, a.rows);
  return 0;
}

int Add(const AddArgs& a, Stream) {
  for (int row = 0; row < a.rows; ++row) {
    Host().add(a.x + row * a.x_stride, a.y + row * a.y_stride, a.n);
  }
  return 0;
}

// K of a token of the cache.
std::byte* KeyOf(const KvView& cache, int sequence, int head, int position) {
  const int64_t table = cache.begins[sequence * cache.begin_stride];
  const int32_t block = cache.blocks[table + position / kKvRecordTokens];
  return cache.base + block * cache.block_stride + head * cache.head_stride +
         position % kKvRecordTokens * cache.dim * (cache.type == KvType::kF32 ? 4 : 2);
}
std::byte* ValueOf(const KvView& cache, std::byte* key) {
  return key + KvRecordBytes(cache.type, cache.dim) / 2;
}

void Store(KvType type, const float* x, int n, std::byte* to) {
  for (int i = 0; i < n; ++i) {
    const uint16_t bf16 = FloatToBf16(x[i]);
    if (type == KvType::kF32) std::memcpy(to + i * 4, x + i, 4);
    if (type == KvType::kBf16) std::memcpy(to + i * 2, &bf16, 2);
  }
}
void LoadNumbers(KvType type, const std::byte* from, int n, float* x) {
  for (int i = 0; i < n; ++i) {
    if (type == KvType::kF32) std::memcpy(x + i, from + i * 4, 4);
    if (type == KvType::kBf16) x[i] = Bf16ToFloat(LoadAs<uint16_t>(from + i * 2));
  }
}

int KvWrite(const KvWriteArgs& a, Stream) {
  const int dim = a.cache.dim;
  for (int row = 0; row < a.rows; ++row) {
    for (int head = 0; head < a.heads; ++head) {
      std::byte* const key = KeyOf(a.cache, a.sequences[row], head, a.positions[row]);
      const int64_t from = row * a.row_stride + head * dim;
      Store(a.cache.type, a.k + from, dim, key);
      Store(a.cache.type, a.v + from, dim, ValueOf(a.cache, key));
    }
  }
  return 0;
}

// Attention of rows [begin, end) of one sequence, at consecutive positions: over a copy of their K
// and V as kv_layout.h has them.
void Attend(const AttentionArgs& a, int begin, int end) {
  const int dim = a.cache.dim, keys = a.positions[end - 1] + 1, width = a.kv_heads * dim;
  const KvFormat format =
      KvFormat::Both(a.cache.type == KvType::kF32 ? kernels::KvType::kF32 : kernels::KvType::kBf16);
  const int64_t head_bytes = kernels::KvRecordBytes(format, KvDims::Equal(dim));
  const int blocks = (keys + kKvRecordTokens - 1) / kKvRecordTokens;
  std::vector<std::byte> memory(static_cast<size_t>(blocks * a.kv_heads * head_bytes + 64));
  void* base = memory.data();
  size_t room = memory.size();
  std::align(64, 1, base, room);
  std::vector<int32_t> table(blocks);
  for (int i = 0; i < blocks; ++i) table[i] = i;
  const kernels::KvView view{.format = format,
                             .dims = KvDims::Equal(dim),
                             .base = static_cast<std::byte*>(base),
                             .block_stride = a.kv_heads * head_bytes,
                             .head_stride = head_bytes,
                             .block_table = table.data()};
  std::vector<float> k(static_cast<size_t>(keys) * width), v(k.size());
  for (int at = 0; at < keys; ++at) {
    for (int head = 0; head < a.kv_heads; ++head) {
      std::byte* const key = KeyOf(a.cache, a.sequences[begin], head, at);
      LoadNumbers(a.cache.type, key, dim, k.data() + at * width + head * dim);
      LoadNumbers(a.cache.type, ValueOf(a.cache, key), dim, v.data() + at * width + head * dim);
    }
  }
  Host().kv_write(
      {.cache = view, .heads = a.kv_heads, .k = k.data(), .v = v.data(), .token_stride = width}, 0,
      keys);
  for (int head = 0; head < a.kv_heads * a.group; ++head) {
    Host().paged_attention({.cache = view,
                            .kv_head = head / a.group,
                            .first_position = a.positions[begin],
                            .heads = 1,
                            .q = a.q + begin * a.q_stride + head * dim,
                            .q_stride = a.q_stride,
                            .scale = a.scale,
                            .out_dim = a.out_dim,
                            .out = a.out + begin * a.out_stride + a.head_places[head],
                            .out_stride = a.out_stride},
                           0, end - begin);
  }
}

int PagedAttention(const AttentionArgs& a, Stream) {
  const int last = a.first_row + a.rows;
  for (int begin = a.first_row; begin < last;) {
    int end = begin + 1;
    while (end < last && a.sequences[end] == a.sequences[begin] &&
           a.positions[end] == a.positions[end - 1] + 1) {
      ++end;
    }
    Attend(a, begin, end);
    begin = end;
  }
  return 0;
}

const float* RowOf(const LogitRows& in, int row) { return in.logits + row * in.stride; }

int ArgMax(const ArgMaxArgs& a, Stream) {
  for (int i = 0; i < a.in.rows; ++i) a.out[i] = Host().argmax(RowOf(a.in, i), a.in.n);
  return 0;
}
int TopN(const TopNArgs& a, Stream) {
  for (int i = 0; i < a.in.rows; ++i) {
    Host().top_n(RowOf(a.in, i), a.in.n, a.count, a.out + i * a.count);
  }
  return 0;
}
int GumbelArgMax(const GumbelArgMaxArgs& a, Stream) {
  for (int i = 0; i < a.in.rows; ++i) {
    const Gumbel& draw = a.draws[i];
    a.out[i] = Host().gumbel_argmax(RowOf(a.in, i), a.in.n,
                                    {.inverse_temperature = draw.inverse_temperature,
                                     .key = draw.key,
                                     .cutoff = draw.cutoff,
                                     .first_token = draw.first_token});
  }
  return 0;
}
int ComputeSoftmaxStats(const SoftmaxStatsArgs& a, Stream) {
  for (int i = 0; i < a.in.rows; ++i) a.out[i] = Host().softmax_stats(RowOf(a.in, i), a.in.n);
  return 0;
}
int LogitsOf(const LogitsOfArgs& a, Stream) {
  for (int i = 0; i < a.in.rows; ++i) {
    a.out[i] = RowOf(a.in, i)[a.tokens[i * a.token_stride] - a.first_token];
  }
  return 0;
}

}  // namespace

const Ops& HostOps() {
  static constexpr Ops kHostOps = {
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
  return kHostOps;
}

}  // namespace flotilla::kernels::cuda
