// matmul_i16: a block of threads for a panel of 32 columns and some tiles of 16 rows. Each of its
// warps has 8 of the columns.
//
// An activation of 16 bits is 256 high + low, with a signed high byte and an unsigned low one. So
// the dot product of a block is two products of bytes, which are exact in any order, and fit: each
// is below 2^20, and their sum below 2^28.
#include <cmath>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weights.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 128;
constexpr int kTileRows = 16;
constexpr int kWarpColumns = kPanelColumns / (kThreads / kWarp);

// A warp's sums of kTiles tiles. Each thread has rows g and g + 8 of a tile, and columns 2 t and
// 2 t + 1, as ptx.h says. kLevels: of the tree of splits.
template <class Kind, int kTiles, int kLevels>
FLOTILLA_KERNEL(kThreads)
MatMulI16Kernel(const MatMulI16Args args) {
  const Matrix& w = args.weights;
  const int lane = LaneOf(Thread()), group = lane / 4, quarter = lane % 4;
  const int panel = BlockX(), first_row = BlockY() * (kTiles * kTileRows);
  const int first_column = WarpOf(Thread()) * kWarpColumns;  // in the panel
  const int columns[2] = {first_column + 2 * quarter, first_column + 2 * quarter + 1};
  // Rows of a tile that the product does not have are read from its last row, and not written.
  int rows[2 * kTiles];
  FLOTILLA_UNROLL
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int row = first_row + group + 8 * i;
    rows[i] = row < args.rows ? row : args.rows - 1;
  }

  SplitTree<4 * kTiles, kLevels> tree;
  int k = 0;
  for (int split = 0; split < w.split_count; ++split) {
    float acc[4 * kTiles] = {};
    const int end = w.split_ends[split];
    FLOTILLA_UNROLL_BY(kTiles == 1 ? 4 : 2)
    for (; k < end; k += kBlockK) {
      const std::byte* const record = RecordOf<Kind>(w, panel, k / kBlockK);
      uint32_t codes[2];
      FLOTILLA_UNROLL
      for (int i = 0; i < 2; ++i) {
        codes[i] = Kind::FourCodes(record, first_column + group, i * 16 + quarter * 4);
      }
      FLOTILLA_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        uint32_t high[4], low[4];
        FLOTILLA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = rows[tile * 2 + i % 2];
          const Pair pair =
              LoadPair(args.x.values + int64_t{row} * w.k + k + i / 2 * 16 + quarter * 4);
          low[i] = BytePermute(pair.x, pair.y, 0x6420);
          high[i] = BytePermute(pair.x, pair.y, 0x7531);
        }
        int32_t highs[4] = {}, lows[4] = {};
        MultiplyS8(highs, high, codes);
        MultiplyU8(lows, low, codes);
        FLOTILLA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = rows[tile * 2 + i / 2];
          const float* const sums =
              args.x.group_sums + int64_t{row} * (w.k / kSumSpan) + k / kSumSpan;
          float& sum = acc[tile * 4 + i];
          sum = Kind::AddDot(record, columns[i % 2], highs[i] * 256 + lows[i], sums, sum);
        }
      }
    }
    FLOTILLA_UNROLL
    for (int i = 0; i < 4 * kTiles; ++i) {
      acc[i] = args.x.scales[int64_t{rows[i / 2]} * w.split_count + split] * acc[i];
    }
    tree.Add(acc);
  }
  float total[4 * kTiles] = {};
  tree.Total(total);
  FLOTILLA_UNROLL
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int row = first_row + group + i / 2 * 8, column = panel * kPanelColumns + columns[i % 2];
    if (row >= args.rows || column >= w.columns) continue;
    float* const out = args.out + row * args.out_stride + column;
    *out = args.accumulate ? *out + total[i] : total[i];
  }
}

template <class Kind, int kTiles, int kLevels>
int LaunchTiles(const MatMulI16Args& args, Stream stream) {
  const Grid grid{.x = (args.weights.columns + kPanelColumns - 1) / kPanelColumns,
                  .y = (args.rows + kTiles * kTileRows - 1) / (kTiles * kTileRows)};
  return Launch<MatMulI16Kernel<Kind, kTiles, kLevels>, kThreads, NothingShared>("matmul_i16", grid,
                                                                                 args, stream);
}

}  // namespace

int MatMulI16(const MatMulI16Args& args, Stream stream) {
  return VisitKind(args.weights.kind, [&]<class Kind>() {
    if constexpr (Kind::kHasIntegerProduct) {
      // Many rows share the weights that a thread has read. The tree takes registers.
      if (args.rows <= kTileRows) return LaunchTiles<Kind, 1, kMostLevels>(args, stream);
      if (args.weights.split_count > 1) return LaunchTiles<Kind, 2, kMostLevels>(args, stream);
      return LaunchTiles<Kind, 4, 1>(args, stream);
    }
    return 0;
  });
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
