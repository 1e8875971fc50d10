// The ops of kernels/ops.h for GPUs: the same sums in the same order, and so the same bits. Each is
// launched once for all rows of a step, whatever their sequences.
//
// Use: DeviceOps() launches on a GPU, and SimulatedOps() runs the same kernels on the CPU. A call
// enqueues its kernels on the stream and returns 0, or an error of CUDA as a number
// (SimulatedOps: simulated::kFault). All pointers are to memory of the device, and rows without a
// stride lie side by side. Preconditions are the caller's invariants and are not checked here.
//
// Files that nvcc compiles include no library but CUDA and the standard one, so that a machine with
// nothing but nvcc can build them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/types/activation.h"
#include "kernels/noise.h"
#include "kernels/row_scores.h"

namespace flotilla::kernels::cuda {

// A stream of CUDA (cudaStream_t), or simulated::SimulatedStream*.
using Stream = void*;

// The kinds of packed weights (kernels/packing/) that these ops multiply.
enum class WeightKind : uint8_t { kFloats, kFp16, kBf16, kNibbles, kBytes };

constexpr bool HasIntegerProduct(WeightKind kind) {
  return kind == WeightKind::kNibbles || kind == WeightKind::kBytes;
}

// The weights of a PackedMatrix, copied as they are: kernels::MatrixView without windows.
struct Matrix {
  WeightKind kind = WeightKind::kFloats;
  int columns = 0;
  int k = 0;  // a multiple of 32
  int split_count = 1;
  const int32_t* split_ends = nullptr;  // [split_count]
  const std::byte* panels = nullptr;
  int64_t panel_bytes = 0;
};

// As kernels::QuantizedRows.
struct QuantizedRows {
  int16_t* values = nullptr;    // [rows, k]
  float* group_sums = nullptr;  // [rows, k / 16]
  float* scales = nullptr;      // [rows, splits]
};

// rms_norm of `heads` runs of n numbers in each row.
struct RmsNormArgs {
  const float* x = nullptr;  // [rows, heads, n] fp32
  int64_t x_stride = 0;      // floats from row to row
  int64_t x_head_stride = 0;
  const int32_t* x_rows = nullptr;  // [rows] the row of x; null: the same as of out
  int rows = 0;
  int heads = 1;
  const float* weight = nullptr;  // [n]
  int n = 0;
  float eps = 0;
  float* out = nullptr;  // as x, and may be x
  int64_t out_stride = 0;
  int64_t out_head_stride = 0;
};

struct QuantizeArgs {
  const float* x = nullptr;  // [rows, k] fp32
  int64_t x_stride = 0;
  int k = 0;
  int rows = 0;
  int split_count = 1;
  const int32_t* split_ends = nullptr;  // [split_count]
  QuantizedRows out;
};

struct MatMulI16Args {
  Matrix weights;
  QuantizedRows x;
  int rows = 0;
  float* out = nullptr;  // [rows, columns] fp32
  int64_t out_stride = 0;
  bool accumulate = false;
};

struct MatMulF32Args {
  Matrix weights;
  const float* x = nullptr;  // [rows, k] fp32
  int64_t x_stride = 0;
  int rows = 0;
  float* out = nullptr;  // [rows, columns] fp32
  int64_t out_stride = 0;
  bool accumulate = false;
};

struct RopeArgs {
  float* x = nullptr;  // [rows, heads, head_stride] fp32
  int64_t row_stride = 0;
  int rows = 0;
  int heads = 0;
  int64_t head_stride = 0;
  int dim = 0;
  const int32_t* positions = nullptr;  // [rows]
  const float* table = nullptr;        // [positions, dim]
};

struct ActivateArgs {
  Activation activation = Activation::kSilu;
  const float* gate = nullptr;  // [rows, n] fp32
  const float* up = nullptr;    // [rows, n] fp32; null: none
  int64_t in_stride = 0;
  int n = 0;
  int rows = 0;
  float* out = nullptr;  // [rows, n]; may be `gate` or `up`
  int64_t out_stride = 0;
};

// add: y += x.
struct AddArgs {
  const float* x = nullptr;  // [rows, n] fp32
  int64_t x_stride = 0;      // 0: the same row for all
  float* y = nullptr;        // [rows, n]
  int64_t y_stride = 0;
  int n = 0;
  int rows = 0;
};

// K and V of one layer for all sequences. Block b has of KV head h, at base + b block_stride +
// h head_stride bytes, a record of K [16 tokens][dim] and then V [16 tokens][dim]. A thread writes
// numbers of one token, so none shares a word with another token's (as pairs of kv_layout.h would).
enum class KvType : uint8_t { kF32, kBf16 };
inline constexpr int kKvRecordTokens = 16;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxGroup = 16;  // query heads of a KV head

constexpr int64_t KvRecordBytes(KvType type, int dim) {
  return int64_t{2} * kKvRecordTokens * dim * (type == KvType::kF32 ? 4 : 2);
}

struct KvView {
  KvType type = KvType::kBf16;
  int dim = 0;  // a multiple of 16, at most kMaxHeadDim
  std::byte* base = nullptr;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  // The block of position p of a sequence is blocks[begins[sequence * begin_stride] + p / 16].
  const int32_t* blocks = nullptr;
  const int64_t* begins = nullptr;
  int begin_stride = 1;
};

// kv_write: stores K and V of each row at its position of its sequence.
struct KvWriteArgs {
  KvView cache;
  int rows = 0;
  int heads = 0;                       // KV heads
  const int32_t* sequences = nullptr;  // [rows] the row's table
  const int32_t* positions = nullptr;  // [rows]
  const float* k = nullptr;            // [rows, heads, dim] fp32
  const float* v = nullptr;            // [rows, heads, dim] fp32
  int64_t row_stride = 0;              // of k and of v
};

// A row attends in segments of this many keys, each in a block of threads of its own.
inline constexpr int kSegmentKeys = 256;
constexpr int SegmentsOf(int position) { return position / kSegmentKeys + 1; }

// paged_attention of rows [first_row, first_row + rows), each of which sees the keys of its
// sequence up to its position. The segments of all rows are numbered one after the other, and those
// of these rows are [first_segment, first_segment + segments).
struct AttentionArgs {
  KvView cache;
  int first_row = 0;
  int rows = 0;
  int first_segment = 0;
  int segments = 0;
  int kv_heads = 0;
  int group = 0;                            // query heads of a KV head, which lie side by side
  const int32_t* sequences = nullptr;       // [all rows]
  const int32_t* positions = nullptr;       // [all rows]
  const int32_t* first_segments = nullptr;  // [all rows + 1] the number of the row's first segment
  const int32_t* segment_rows = nullptr;    // [all segments] the row
  const float* q = nullptr;                 // [all rows, kv_heads * group, dim] fp32
  int64_t q_stride = 0;
  float scale = 0;
  float* scratch = nullptr;              // [segments, kv_heads * group, dim + 2]
  const int32_t* head_places = nullptr;  // [kv_heads * group] where results begin in a row of out
  int out_dim = 0;                       // elements of a result that are written
  float* out = nullptr;                  // [all rows, ...] fp32
  int64_t out_stride = 0;
};

// Passes over rows of logits.
struct LogitRows {
  const float* logits = nullptr;  // [rows, n] fp32
  int64_t stride = 0;
  int n = 0;
  int rows = 0;
};
struct ArgMaxArgs {
  LogitRows in;
  TokenScore* out = nullptr;  // [rows]
};
struct TopNArgs {
  LogitRows in;
  int count = 0;              // 1 to 64, at most n
  TokenScore* out = nullptr;  // [rows, count]
};
struct Gumbel {
  float inverse_temperature = 1;
  NoiseKey key;
  TokenScore cutoff;
  int32_t first_token = 0;
};
struct GumbelArgMaxArgs {
  LogitRows in;
  const Gumbel* draws = nullptr;  // [rows]
  TokenScore* out = nullptr;      // [rows]
};
// logits_of: out[row] = the logit of token tokens[row * token_stride] - first_token.
struct LogitsOfArgs {
  LogitRows in;
  const int32_t* tokens = nullptr;
  int token_stride = 1;
  int32_t first_token = 0;
  float* out = nullptr;  // [rows]
};
struct SoftmaxStatsArgs {
  LogitRows in;                 // n is at most kMostLogits
  SoftmaxStats* out = nullptr;  // [rows]
};
inline constexpr int kMostLogits = 1 << 20;

// One implementation of every op.
struct Ops {
  int (*rms_norm)(const RmsNormArgs&, Stream);
  int (*quantize_rows)(const QuantizeArgs&, Stream);
  int (*matmul_i16)(const MatMulI16Args&, Stream);
  int (*matmul_f32)(const MatMulF32Args&, Stream);
  int (*rope)(const RopeArgs&, Stream);
  int (*activate)(const ActivateArgs&, Stream);
  int (*add)(const AddArgs&, Stream);
  int (*kv_write)(const KvWriteArgs&, Stream);
  int (*paged_attention)(const AttentionArgs&, Stream);
  int (*argmax)(const ArgMaxArgs&, Stream);
  int (*top_n)(const TopNArgs&, Stream);
  int (*gumbel_argmax)(const GumbelArgMaxArgs&, Stream);
  int (*softmax_stats)(const SoftmaxStatsArgs&, Stream);
  int (*logits_of)(const LogitsOfArgs&, Stream);
};

// Each is in a library of its own: flotilla_kernels_cuda and flotilla_kernels_simulated.
namespace device {
extern const Ops kOps;
}
namespace simulated {
extern const Ops kOps;
}
inline const Ops& DeviceOps() { return device::kOps; }
inline const Ops& SimulatedOps() { return simulated::kOps; }

}  // namespace flotilla::kernels::cuda
