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

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/dots-inl.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"
#include "kernels/packing/kinds.h"

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

// Adds the outliers of the blocks [begin, end) to the sums of R rows x H halves of a panel. They
// are few, so each is multiplied by itself: by one row after the other, or by R rows at once if the
// path can transpose as many.
template <class S, int R, int H>
FLOTILLA_INLINE void AddOutliers(const MatrixView& w, int panel, int half, int begin, int end,
                                 const int16_t* const (&x)[R], TileSums<S, R * H>& acc) {
  constexpr bool kTransposes = R == S::kTransposedRows;
  alignas(64) float sums[R * H * 16];       // [R][columns]
  alignas(64) float by_column[R * H * 16];  // the same, [columns][R]
  alignas(64) int16_t by_k[kBlockK * R];    // a block of x
  FLOTILLA_UNROLL
  for (int i = 0; i < R * H; ++i) S::Store(sums + i * 16, acc.Get(i));
  for (int i = 0; kTransposes && i < R * H * 16; ++i) by_column[i] = sums[i % R * H * 16 + i / R];
  for (int block = begin; block < end; ++block) {
    if constexpr (kTransposes) S::TransposeBlock(x, block * kBlockK, by_k);
    w.ForEachOutlier(panel, block, half, H, [&](uint32_t word) FLOTILLA_INLINE_LAMBDA {
      const float outlier = S::HalfToFloat(OutlierValue(word));
      const int k = OutlierK(word), column = OutlierColumn(word) - half * 16;
      if constexpr (kTransposes) {
        S::AddRows(outlier, by_k + S::TransposedAt(k), by_column + column * R);
      } else {
        FLOTILLA_UNROLL
        for (int r = 0; r < R; ++r) {
          float& sum = sums[r * H * 16 + column];
          sum = __builtin_fmaf(outlier, static_cast<float>(x[r][block * kBlockK + k]), sum);
        }
      }
    });
  }
  for (int i = 0; kTransposes && i < R * H * 16; ++i) sums[i % R * H * 16 + i / R] = by_column[i];
  FLOTILLA_UNROLL
  for (int i = 0; i < R * H; ++i) acc.Set(i, S::Load(sums + i * 16));
}

// Computes R rows x H halves of one panel, K in full. The function is kept out of line so
// that every tile shape gets the whole register file.
template <class S, class Kind, int R, int H>
__attribute__((noinline)) void I16Tile(const MatMulI16Args& args, int panel, int half, int row) {
  using F = typename S::F;
  const MatrixView& w = args.weights;
  RecordCursor<Kind> records(w, panel);
  const int16_t* x[R];
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) x[r] = args.x.values + static_cast<int64_t>(row + r) * w.k;
  const float* sums = args.x.group_sums + static_cast<int64_t>(row) * (w.k / kSumSpan);
  const float* scales = args.x.scales + static_cast<int64_t>(row) * w.split_count;

  SplitTree<S, R * H> tree;
  F total[R * H];
  int block = 0;
  for (int split = 0; split < w.split_count; ++split) {
    TileSums<S, R * H> acc;
    const int begin = block;
    for (const int end = w.split_ends[split] / kBlockK; block < end; ++block) {
      const BlockRows<R> rows{x, sums, w.k / kActivationGroup, block};
      Kind::template AddBlock<S, R, H>(records.Next(), half, rows, acc);
    }
    if constexpr (kHasOutliersOf<Kind>) AddOutliers<S, R, H>(w, panel, half, begin, block, x, acc);
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
template <class S, class Kind, int R>
void I16Rows(const MatMulI16Args& args, int panel, int half, int row) {
  for (; row + R <= args.rows; row += R) I16Tile<S, Kind, R, S::kHalves>(args, panel, half, row);
  if constexpr (R > 1) I16Rows<S, Kind, R - 1>(args, panel, half, row);
}

template <class S>
void MatMulI16(const MatMulI16Args& args, int panel_begin, int panel_end) {
  VisitKind(args.weights.kind, [&]<class Kind>() FLOTILLA_INLINE_LAMBDA {
    if constexpr (Kind::kHasIntegerProduct) {
      for (int panel = panel_begin; panel < panel_end; ++panel) {
        for (int half = 0; half < 2; half += S::kHalves) {
          I16Rows<S, Kind, S::kI16Rows>(args, panel, half, 0);
        }
      }
    }
  });
}

// The zero of the activations times the sum of (code - zero) of each split and column of a panel:
// the dot products that a row of ones has with the panel.
template <class S, class Kind>
__attribute__((noinline)) void ZeroSums(const MatrixView& w, int panel, int32_t* sums) {
  alignas(64) static constexpr int8_t kOnes[4] = {1, 1, 1, 1};
  const auto ones = S::BroadcastQuad(kOnes);
  int block = 0;
  for (int split = 0; split < w.split_count; ++split, sums += kPanelColumns) {
    const int begin = block, end = w.split_ends[split] / kBlockK;
    for (int half = 0; half < 2; ++half) {
      auto sum = S::IZero();
      for (block = begin; block < end; ++block) {
        for (int quad = 0; quad < kBlockK / 4; ++quad) {
          sum =
              S::DotQuads(sum, S::LoadQuads(w.record(panel, block) + half * 512 + quad * 64), ones);
        }
      }
      const auto zero = Kind::template Zeros<S>(w.super(panel, 0), half);
      sum = S::ISub(sum, S::IMul(zero, S::ISet1((end - begin) * kBlockK)));
      S::IStore(sums + half * 16, S::IMul(sum, S::ISet1(w.activations.zero)));
    }
  }
}

// As I16Tile, of int8: dot products of whole splits. `zero_sums` are those of the panel; null: the
// activations have no zero.
template <class S, class Kind, int R, int H>
__attribute__((noinline)) void I8Tile(const MatMulI8Args& args, int panel, int half, int row,
                                      const int32_t* zero_sums) {
  using F = typename S::F;
  using I = typename S::I;
  constexpr int C = DotChains<S>(R * H);
  const MatrixView& w = args.weights;
  RecordCursor<Kind> records(w, panel);
  const int8_t* x[R];
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) x[r] = args.x.bytes(row + r, w.k);
  const float* sums = args.x.group_sums + static_cast<int64_t>(row) * (w.k / kSumSpan);
  const float* scales = args.x.scales + static_cast<int64_t>(row) * w.split_count;
  const std::byte* const columns = w.super(panel, 0);

  SplitTree<S, R * H> tree;
  F total[R * H];
  int block = 0;
  for (int split = 0; split < w.split_count; ++split) {
    I chains[C][R * H], dots[R * H];
    ClearDots<S>(chains);
    const float* const split_sums = sums + block * (kBlockK / kSumSpan);
    for (const int end = w.split_ends[split] / kBlockK; block < end; ++block) {
      Kind::template AddQuads<S, R, H, C>(records.Next().record, half, x, block, chains);
    }
    SumChains<S>(chains, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      const I zero = Kind::template Zeros<S>(columns, half + h);
      const F d = Kind::template Scales<S>(columns, half + h);
      I of_zero = S::IZero();
      if (zero_sums != nullptr) {
        of_zero = S::ILoad(zero_sums + split * kPanelColumns + (half + h) * 16);
      }
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const auto sum = static_cast<int32_t>(split_sums[r * (w.k / kSumSpan)]);
        const I dot = S::ISub(S::ISub(dots[r * H + h], S::IMul(zero, S::ISet1(sum))), of_zero);
        total[r * H + h] =
            S::Mul(S::Set1(scales[r * w.split_count + split]), S::Mul(d, S::ToFloat(dot)));
      }
    }
    if (w.split_count > 1) tree.Push(split, total);
  }
  if (w.split_count > 1) tree.Finish(w.split_count, total);
  StoreTile<S, R, H>(args, row, panel * kPanelColumns + half * 16, total);
}

template <class S, class Kind, int R>
void I8Rows(const MatMulI8Args& args, int panel, int half, int row, const int32_t* zero_sums) {
  for (; row + R <= args.rows; row += R) {
    I8Tile<S, Kind, R, S::kHalves>(args, panel, half, row, zero_sums);
  }
  if constexpr (R > 1) I8Rows<S, Kind, R - 1>(args, panel, half, row, zero_sums);
}

template <class S>
void MatMulI8(const MatMulI8Args& args, int panel_begin, int panel_end) {
  VisitKind(args.weights.kind, [&]<class Kind>() FLOTILLA_INLINE_LAMBDA {
    if constexpr (kHasInt8ProductOf<Kind>) {
      alignas(64) int32_t zero_sums[kMaxSplits * kPanelColumns];
      const bool has_zero = args.weights.activations.zero != 0;
      for (int panel = panel_begin; panel < panel_end; ++panel) {
        if (has_zero) ZeroSums<S, Kind>(args.weights, panel, zero_sums);
        for (int half = 0; half < 2; half += S::kHalves) {
          I8Rows<S, Kind, S::kI16Rows>(args, panel, half, 0, has_zero ? zero_sums : nullptr);
        }
      }
    }
  });
}

// Adds `count` k of weights [count][32], which are plain numbers, times x to R rows of acc
// [rows][32], in the columns from `half` on.
template <class S, class Kind, int R, int H>
__attribute__((noinline)) void F32Tile(const std::byte* weights, int half, const float* x,
                                       int64_t x_stride, int count, float* acc) {
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
    for (int h = 0; h < H; ++h) {
      w[h] = Kind::template Load<S>(weights, k * kPanelColumns + (half + h) * 16);
    }
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

template <class S, class Kind, int R>
void F32Rows(const std::byte* weights, const float* x, int64_t x_stride, int rows, int count,
             float* acc) {
  for (; rows >= R; rows -= R, x += R * x_stride, acc += R * kPanelColumns) {
    for (int half = 0; half < 2; half += S::kHalves) {
      F32Tile<S, Kind, R, S::kHalves>(weights, half, x, x_stride, count, acc + half * 16);
    }
  }
  if constexpr (R > 1) F32Rows<S, Kind, R - 1>(weights, x, x_stride, rows, count, acc);
}

inline constexpr int kStreamAhead = 4096;  // bytes

// F32Tile of `count` blocks of a kind that streams its weights.
template <class S, class Kind, int R, int H>
__attribute__((noinline)) void StreamTile(const MatrixView& matrix, int panel, int block, int count,
                                          int half, const float* x, int64_t x_stride, float* acc) {
  using F = typename S::F;
  F sum[R * H];
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) {
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) sum[r * H + h] = S::Load(acc + r * kPanelColumns + h * 16);
  }
  for (int b = 0; b < count; ++b, x += kBlockK) {
    // The unpacking of a block takes about as long as its way from memory, and hides little of it.
    const auto ahead = reinterpret_cast<uintptr_t>(matrix.record(panel, block + b)) + kStreamAhead;
    for (int line = 0; line < Kind::kRecordBytes; line += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
    }
    Kind::template ForEachK<S, H>(RecordOf<Kind>(matrix, panel, block + b), half,
                                  [&](int k, const F(&weights)[H]) FLOTILLA_INLINE_LAMBDA {
                                    FLOTILLA_UNROLL
                                    for (int r = 0; r < R; ++r) {
                                      const F value = S::Set1(x[r * x_stride + k]);
                                      FLOTILLA_UNROLL
                                      for (int h = 0; h < H; ++h) {
                                        sum[r * H + h] = S::Fma(value, weights[h], sum[r * H + h]);
                                      }
                                    }
                                  });
  }
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) {
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) S::Store(acc + r * kPanelColumns + h * 16, sum[r * H + h]);
  }
}

// The same of both halves of a panel and up to R rows.
template <class S, class Kind, int R>
void StreamRows(const MatrixView& matrix, int panel, int block, int count, const float* x,
                int64_t x_stride, int rows, float* acc) {
  if (rows == R) {
    for (int half = 0; half < 2; half += S::kHalves) {
      StreamTile<S, Kind, R, S::kHalves>(matrix, panel, block, count, half, x, x_stride,
                                         acc + half * 16);
    }
  } else if constexpr (R > 1) {
    StreamRows<S, Kind, R - 1>(matrix, panel, block, count, x, x_stride, rows, acc);
  }
}
// More rows are worth a copy.
inline constexpr int kStreamedRows = 4;

// Computes up to kF32GroupRows rows of one panel. Weights are converted to fp32 in chunks of
// K that fit in L1 (16 KB), once for all rows of the group; if there is one tile of rows, plain
// numbers go straight into its products. Partial sums wait in memory.
inline constexpr int kF32GroupRows = 32;
inline constexpr int kF32ChunkBlocks = 4;

template <class S, class Kind>
void F32Group(const MatMulF32Args& args, int panel, int row, int rows) {
  const MatrixView& w = args.weights;
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
      const float* from = x + block * kBlockK;
      bool multiplied = false;
      if constexpr (Kind::kIsPlain) {
        if (std::is_same_v<Kind, Floats> || rows <= S::kF32Rows) {
          F32Rows<S, Kind, S::kF32Rows>(w.record(panel, block), from, args.x_stride, rows,
                                        count * kBlockK, acc);
          multiplied = true;
        }
      }
      if constexpr (StreamsWeights<Kind>) {
        if (rows <= kStreamedRows) {
          StreamRows<S, Kind, kStreamedRows>(w, panel, block, count, from, args.x_stride, rows,
                                             acc);
          multiplied = true;
        }
      }
      if (!multiplied) {
        for (int b = 0; b < count; ++b) {
          Kind::template DecodeRecord<S>(RecordOf<Kind>(w, panel, block + b),
                                         chunk + b * kBlockK * kPanelColumns);
          if constexpr (kHasOutliersOf<Kind>) {
            w.ForEachOutlier(panel, block + b, 0, 2, [&](uint32_t word) FLOTILLA_INLINE_LAMBDA {
              chunk[b * kBlockK * kPanelColumns + (word & 0xFFFF)] +=
                  S::HalfToFloat(OutlierValue(word));
            });
          }
        }
        F32Rows<S, Floats, S::kF32Rows>(reinterpret_cast<const std::byte*>(chunk), from,
                                        args.x_stride, rows, count * kBlockK, acc);
      }
      block += count;
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
  VisitKind(args.weights.kind, [&]<class Kind>() FLOTILLA_INLINE_LAMBDA {
    for (int panel = panel_begin; panel < panel_end; ++panel) {
      for (int row = 0; row < args.rows; row += kF32GroupRows) {
        const int rows = args.rows - row < kF32GroupRows ? args.rows - row : kF32GroupRows;
        F32Group<S, Kind>(args, panel, row, rows);
      }
    }
  });
}

}  // namespace flotilla::kernels
