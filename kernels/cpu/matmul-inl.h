// Matrix products on packed weights.
//
// Loop order: panel outer (11 KB of q4 weights at K = 576, so it stays in L1), row
// tiles inner, K in full. A tile of R rows x 16 H columns is held in registers; R
// is a template parameter and never changes a result, because every output has
// its own chain along K. A single row gets independent integer chains from the
// four nibble positions (integer sums are exact in any order).
//
// GOP/s of one core, 256 x 576, and in brackets the share of what the machine's own
// multiply-adds reach in registers, which tests/kernels/product_rate_test.cc holds at 65 %
// for M = 32 and 512. A Xeon (Emerald Rapids) at 3.1 GHz: vpmaddwd + vpaddd 144, vpdpwssd
// 396.
//                  M = 1       M = 4      M = 32     M = 512
//   q4   AVX-512   135 (34)   240 (61)   275 (69)   275 (69)
//   q8_0 AVX-512   152 (38)   266 (67)   295 (74)   293 (74)
//   q4   AVX2       77 (54)   115 (80)   110 (76)   110 (76)
//   q8_0 AVX2       86 (60)   130 (90)   125 (86)   125 (86)
// On AVX-512, the units that multiply also unpack the weights and add up blocks. So a tile of 8
// rows cannot pass 71 % (q4) and 78 % (q8_0). fp32, 576 x 576, on a Zen 5 at 4.2 GHz: AVX-512 39 at
// M = 1, 232 of 267 at M = 32; AVX2 24, 116 of 134 (tests/bench/kernels_benchmark).
#pragma once

#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace flotilla::kernels {

// Adds split partials of a tile in the fixed tree as they arrive: a binary counter
// of complete subtrees, level i holding 2^i splits.
template <class S, int kVectors>
class SplitTree {
 public:
  using F = typename S::F;

  FLOTILLA_INLINE void Push(int split, F (&partial)[kVectors]) {
    int level = 0;
    for (; split >> level & 1; ++level) AddLevel(level, partial);
    FLOTILLA_UNROLL
    for (int v = 0; v < kVectors; ++v) S::Store(levels_[level] + v * 16, partial[v]);
  }

  FLOTILLA_INLINE void Finish(int splits, F (&total)[kVectors]) {
    int level = __builtin_ctz(splits);
    FLOTILLA_UNROLL
    for (int v = 0; v < kVectors; ++v) total[v] = S::Load(levels_[level] + v * 16);
    for (++level; splits >> level != 0; ++level) {
      if (splits >> level & 1) AddLevel(level, total);
    }
  }

 private:
  FLOTILLA_INLINE void AddLevel(int level, F (&sum)[kVectors]) {
    FLOTILLA_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[v] = S::Add(S::Load(levels_[level] + v * 16), sum[v]);
  }

  static constexpr int kLevels = 9;  // kMaxSplits = 2^8
  float levels_[kLevels][kVectors * 16];
};

// Writes or adds R x H vectors to out at (row, column); columns past the matrix
// are left out.
template <class S, int R, int H, class Args>
FLOTILLA_INLINE void StoreTile(const Args& args, int row, int column,
                               const typename S::F (&tile)[R * H]) {
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) {
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      const int n = args.weights.columns - column - h * 16;
      float* out = args.out + (row + r) * args.out_stride + column + h * 16;
      if (n >= 16) {
        const auto value = tile[r * H + h];
        S::Store(out, args.accumulate ? S::Add(S::Load(out), value) : value);
      } else if (n > 0) {
        const auto value = tile[r * H + h];
        S::StoreN(out, n, args.accumulate ? S::Add(S::LoadN(out, n), value) : value);
      }
    }
  }
}

// The number of independent chains of each of `outputs` dot products. There are so many that
// sums do not wait for each other.
template <class S>
constexpr int DotChains(int outputs) {
  return outputs >= S::kDotSums ? 1 : 2 * outputs >= S::kDotSums ? 2 : 4;
}

// The N fp32 sums of a tile, kept from block to block. If the sums and the dot products of a block
// do not fit into the registers together, the sums are kept in memory.
template <class S, int N>
class SumsInRegisters {
 public:
  using F = typename S::F;

  FLOTILLA_INLINE SumsInRegisters() {
    FLOTILLA_UNROLL
    for (int i = 0; i < N; ++i) sums_[i] = S::Zero();
  }
  FLOTILLA_INLINE F Get(int i) const { return sums_[i]; }
  FLOTILLA_INLINE void Set(int i, F sum) { sums_[i] = sum; }

 private:
  F sums_[N];
};
template <class S, int N>
class SumsInMemory {
 public:
  using F = typename S::F;

  FLOTILLA_INLINE SumsInMemory() : at_(sums_) {
    // This hides the address of the sums from the compiler, so that it cannot move them to
    // registers.
    asm("" : "+r"(at_));
    FLOTILLA_UNROLL
    for (int i = 0; i < N; ++i) Set(i, S::Zero());
  }
  SumsInMemory(const SumsInMemory&) = delete;
  SumsInMemory& operator=(const SumsInMemory&) = delete;
  FLOTILLA_INLINE F Get(int i) const { return S::Load(at_ + i * 16); }
  FLOTILLA_INLINE void Set(int i, F sum) { S::Store(at_ + i * 16, sum); }

 private:
  float* at_;
  alignas(64) float sums_[N * 16];
};
template <class S, int N>
using TileSums =
    std::conditional_t<(N <= S::kRegisterSums), SumsInRegisters<S, N>, SumsInMemory<S, N>>;

// One packed step of 2 k: dot[r][h] += weights[h] . x[r].
template <class S, int R, int H, int C>
FLOTILLA_INLINE void DotStep(typename S::I (&dot)[C][R * H], int chain,
                             const typename S::I (&weights)[H], const int16_t* const (&x)[R],
                             int k) {
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) {
    const auto pair = S::BroadcastPair(x[r] + k);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      dot[chain][r * H + h] = S::DotPairs(dot[chain][r * H + h], weights[h], pair);
    }
  }
}

template <class S, int R, int H, int C, int kIndex>
FLOTILLA_INLINE void NibbleStep(typename S::I (&dot)[C][R * H], const typename S::I (&packed)[H],
                                const int16_t* const (&x)[R], int k) {
  typename S::I weights[H];
  FLOTILLA_UNROLL
  for (int h = 0; h < H; ++h) weights[h] = S::template Nibble<kIndex>(packed[h]);
  DotStep<S, R, H, C>(dot, kIndex % C, weights, x, k + 2 * kIndex);
}

// The integer dot products of one block (32 k) from `half` of a record on.
template <class S, PackedKind kKind, int R, int H>
FLOTILLA_INLINE void BlockDots(const std::byte* record, int half, const int16_t* const (&x)[R],
                               int k, typename S::I (&dots)[R * H]) {
  using I = typename S::I;
  constexpr int C = DotChains<S>(R * H);
  I dot[C][R * H];
  FLOTILLA_UNROLL
  for (int c = 0; c < C; ++c) {
    FLOTILLA_UNROLL
    for (int i = 0; i < R * H; ++i) dot[c][i] = S::IZero();
  }
  if constexpr (kKind == PackedKind::kNibbles) {
    FLOTILLA_UNROLL
    for (int z = 0; z < 4; ++z) {
      I packed[H];
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) packed[h] = S::ILoad(record + (half + h) * 256 + z * 64);
      NibbleStep<S, R, H, C, 0>(dot, packed, x, k + z * 8);
      NibbleStep<S, R, H, C, 1>(dot, packed, x, k + z * 8);
      NibbleStep<S, R, H, C, 2>(dot, packed, x, k + z * 8);
      NibbleStep<S, R, H, C, 3>(dot, packed, x, k + z * 8);
    }
  } else {
    FLOTILLA_UNROLL
    for (int pair = 0; pair < 16; ++pair) {
      I weights[H];
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) {
        weights[h] = S::WidenBytes(record + (half + h) * 512 + pair * 32);
      }
      DotStep<S, R, H, C>(dot, pair % C, weights, x, k + pair * 2);
    }
  }
  FLOTILLA_UNROLL
  for (int i = 0; i < R * H; ++i) {
    I sum = dot[0][i];
    FLOTILLA_UNROLL
    for (int c = 1; c < C; ++c) sum = S::IAdd(sum, dot[c][i]);
    dots[i] = sum;
  }
}

// Computes R rows x H halves of one panel, K in full. The function is kept out of line so
// that every tile shape gets the whole register file.
template <class S, PackedKind kKind, int R, int H>
__attribute__((noinline)) void I16Tile(const MatMulI16Args& args, int panel, int half, int row) {
  using F = typename S::F;
  const MatrixView& w = args.weights;
  const int blocks = w.k / kBlockK;
  const std::byte* record = w.records + static_cast<int64_t>(panel) * blocks * RecordBytes(kKind);
  const int16_t* x[R];
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) x[r] = args.x.values + static_cast<int64_t>(row + r) * w.k;
  const float* sums = args.x.block_sums + static_cast<int64_t>(row) * blocks;
  const float* scales = args.x.scales + static_cast<int64_t>(row) * w.split_count;

  SplitTree<S, R * H> tree;
  F total[R * H];
  int block = 0;
  for (int split = 0; split < w.split_count; ++split) {
    TileSums<S, R * H> acc;
    for (const int end = w.split_ends[split] / kBlockK; block < end; ++block) {
      typename S::I dots[R * H];
      BlockDots<S, kKind, R, H>(record, half, x, block * kBlockK, dots);
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) {
        constexpr int kScales =
            kKind == PackedKind::kNibbles ? kNibbleScaleOffset : kByteScaleOffset;
        const F d = S::LoadHalf(record + kScales + (half + h) * 32);
        F m = S::Zero();
        if constexpr (kKind == PackedKind::kNibbles) {
          m = S::LoadHalf(record + kNibbleMinOffset + (half + h) * 32);
        }
        FLOTILLA_UNROLL
        for (int r = 0; r < R; ++r) {
          const int i = r * H + h;
          F sum = S::Fma(d, S::ToFloat(dots[i]), acc.Get(i));
          if constexpr (kKind == PackedKind::kNibbles) {
            sum = S::Fma(m, S::Set1(sums[r * blocks + block]), sum);
          }
          acc.Set(i, sum);
        }
      }
      record += RecordBytes(kKind);
    }
    FLOTILLA_UNROLL
    for (int r = 0; r < R; ++r) {
      const F scale = S::Set1(scales[r * w.split_count + split]);
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) total[r * H + h] = S::Mul(scale, acc.Get(r * H + h));
    }
    if (w.split_count > 1) tree.Push(split, total);
  }
  if (w.split_count > 1) tree.Finish(w.split_count, total);
  StoreTile<S, R, H>(args, row, panel * kPanelColumns + half * 16, total);
}

// Rows [row, row + count) of a panel's half in tiles of R, the rest in smaller
// ones.
template <class S, PackedKind kKind, int R>
void I16Rows(const MatMulI16Args& args, int panel, int half, int row) {
  for (; row + R <= args.rows; row += R) I16Tile<S, kKind, R, S::kHalves>(args, panel, half, row);
  if constexpr (R > 1) I16Rows<S, kKind, R - 1>(args, panel, half, row);
}

template <class S>
void MatMulI16(const MatMulI16Args& args, int panel_begin, int panel_end) {
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    for (int half = 0; half < 2; half += S::kHalves) {
      if (args.weights.kind == PackedKind::kNibbles) {
        I16Rows<S, PackedKind::kNibbles, S::kI16Rows>(args, panel, half, 0);
      } else {
        I16Rows<S, PackedKind::kBytes, S::kI16Rows>(args, panel, half, 0);
      }
    }
  }
}

// One record as fp32 [32 k][32 columns], exactly as the format defines the
// weights (d q is exact in fp32; adding m rounds once, as fma does).
template <class S>
FLOTILLA_INLINE void DequantizeRecord(PackedKind kind, const std::byte* record, float* out) {
  if (kind == PackedKind::kBf16 || kind == PackedKind::kFp16) {
    for (int i = 0; i < kBlockK * kPanelColumns; i += 16) {
      const std::byte* p = record + i * 2;
      S::Store(out + i, kind == PackedKind::kBf16 ? S::LoadBf16(p) : S::LoadHalf(p));
    }
    return;
  }
  const auto store_pair = [&](typename S::I even, typename S::I odd, typename S::F d,
                              typename S::F m, int k, int h) FLOTILLA_INLINE_LAMBDA {
    float* p = out + k * kPanelColumns + h * 16;
    S::Store(p, S::Fma(d, S::ToFloat(even), m));
    S::Store(p + kPanelColumns, S::Fma(d, S::ToFloat(odd), m));
  };
  for (int h = 0; h < 2; ++h) {
    if (kind == PackedKind::kNibbles) {
      const auto d = S::LoadHalf(record + kNibbleScaleOffset + h * 32);
      const auto m = S::LoadHalf(record + kNibbleMinOffset + h * 32);
      for (int z = 0; z < 4; ++z) {
        const auto packed = S::ILoad(record + h * 256 + z * 64);
        const auto step = [&](typename S::I q, int n) FLOTILLA_INLINE_LAMBDA {
          store_pair(S::IAnd(q, S::ISet1(0xFFFF)), S::template Shr<16>(q), d, m, z * 8 + n * 2, h);
        };
        step(S::template Nibble<0>(packed), 0);
        step(S::template Nibble<1>(packed), 1);
        step(S::template Nibble<2>(packed), 2);
        step(S::template Nibble<3>(packed), 3);
      }
    } else {
      // Adding -0.0 leaves every product as it is, the sign of a zero included.
      const auto d = S::LoadHalf(record + kByteScaleOffset + h * 32);
      const auto m = S::Set1(-0.0f);
      for (int pair = 0; pair < 16; ++pair) {
        const auto q = S::WidenBytes(record + h * 512 + pair * 32);
        store_pair(S::template Sar<16>(S::template Shl<16>(q)), S::template Sar<16>(q), d, m,
                   pair * 2, h);
      }
    }
  }
}

// Adds `count` k of weights [count][32] times x to R rows of acc [rows][32].
template <class S, int R, int H>
__attribute__((noinline)) void F32Tile(const float* weights, const float* x, int64_t x_stride,
                                       int count, float* acc) {
  using F = typename S::F;
  F sum[R * H];
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) {
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) sum[r * H + h] = S::Load(acc + r * kPanelColumns + h * 16);
  }
  for (int k = 0; k < count; ++k) {
    F w[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) w[h] = S::Load(weights + k * kPanelColumns + h * 16);
    FLOTILLA_UNROLL
    for (int r = 0; r < R; ++r) {
      const F value = S::Set1(x[r * x_stride + k]);
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) sum[r * H + h] = S::Fma(value, w[h], sum[r * H + h]);
    }
  }
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) {
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) S::Store(acc + r * kPanelColumns + h * 16, sum[r * H + h]);
  }
}

template <class S, int R>
void F32Rows(const float* weights, const float* x, int64_t x_stride, int rows, int count,
             float* acc) {
  for (; rows >= R; rows -= R, x += R * x_stride, acc += R * kPanelColumns) {
    for (int half = 0; half < 2; half += S::kHalves) {
      F32Tile<S, R, S::kHalves>(weights + half * 16, x, x_stride, count, acc + half * 16);
    }
  }
  if constexpr (R > 1) F32Rows<S, R - 1>(weights, x, x_stride, rows, count, acc);
}

// Computes up to kF32GroupRows rows of one panel. Weights are converted to fp32 in chunks of
// K that fit in L1 (16 KB), once for all rows of the group. Partial sums wait in memory.
inline constexpr int kF32GroupRows = 32;
inline constexpr int kF32ChunkBlocks = 4;

template <class S>
void F32Group(const MatMulF32Args& args, int panel, int row, int rows) {
  const MatrixView& w = args.weights;
  const int blocks = w.k / kBlockK;
  const int64_t record_bytes = RecordBytes(w.kind);
  const std::byte* record = w.records + static_cast<int64_t>(panel) * blocks * record_bytes;
  const float* x = args.x + row * args.x_stride;
  alignas(64) float chunk[kF32ChunkBlocks * kBlockK * kPanelColumns];
  alignas(64) float acc[kF32GroupRows * kPanelColumns];
  SplitTree<S, 2> trees[kF32GroupRows];

  int block = 0;
  for (int split = 0; split < w.split_count; ++split) {
    for (int i = 0; i < rows * kPanelColumns; i += 16) S::Store(acc + i, S::Zero());
    const int end = w.split_ends[split] / kBlockK;
    while (block < end) {
      const int count = end - block < kF32ChunkBlocks ? end - block : kF32ChunkBlocks;
      const float* weights = reinterpret_cast<const float*>(record);
      if (w.kind != PackedKind::kFloats) {
        for (int b = 0; b < count; ++b) {
          DequantizeRecord<S>(w.kind, record + b * record_bytes,
                              chunk + b * kBlockK * kPanelColumns);
        }
        weights = chunk;
      }
      F32Rows<S, S::kF32Rows>(weights, x + block * kBlockK, args.x_stride, rows, count * kBlockK,
                              acc);
      block += count;
      record += count * record_bytes;
    }
    for (int r = 0; r < rows; ++r) {
      const float* sums = acc + r * kPanelColumns;
      typename S::F total[2] = {S::Load(sums), S::Load(sums + 16)};
      if (w.split_count > 1) trees[r].Push(split, total);
      if (split + 1 < w.split_count) continue;
      if (w.split_count > 1) trees[r].Finish(w.split_count, total);
      StoreTile<S, 1, 2>(args, row + r, panel * kPanelColumns, total);
    }
  }
}

template <class S>
void MatMulF32(const MatMulF32Args& args, int panel_begin, int panel_end) {
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    for (int row = 0; row < args.rows; row += kF32GroupRows) {
      const int rows = args.rows - row < kF32GroupRows ? args.rows - row : kF32GroupRows;
      F32Group<S>(args, panel, row, rows);
    }
  }
}

}  // namespace flotilla::kernels
