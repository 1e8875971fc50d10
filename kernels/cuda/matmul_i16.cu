// matmul_i16: a block of threads for 16 rows and a panel of 32 columns. Each of its warps has 8 of
// the columns.
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

// The bytes of the codes k to k + 3 of a column.
template <class Kind>
FLOTILLA_DEVICE uint32_t FourCodes(const std::byte* record, int column, int k) {
  uint32_t bytes = 0;
  FLOTILLA_UNROLL
  for (int i = 0; i < 4; ++i) {
    bytes |= (static_cast<uint32_t>(Kind::Code(record, column, k + i)) & 0xFFu) << 8 * i;
  }
  return bytes;
}

template <class Kind>
FLOTILLA_KERNEL(kThreads)
MatMulI16Kernel(const MatMulI16Args args) {
  const Matrix& w = args.weights;
  const int lane = LaneOf(Thread()), group = lane / 4, quarter = lane % 4;
  const int panel = BlockX(), first_row = BlockY() * kTileRows;
  const int first_column = WarpOf(Thread()) * kWarpColumns;  // in the panel
  // Rows of the tile that the product does not have are read from its last row, and not written.
  int rows[2];
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + group + 8 * h;
    rows[h] = row < args.rows ? row : args.rows - 1;
  }
  const int columns[2] = {first_column + 2 * quarter, first_column + 2 * quarter + 1};

  SplitTree<4> tree;
  int k = 0;
  for (int split = 0; split < w.split_count; ++split) {
    float acc[4] = {};
    for (const int end = w.split_ends[split]; k < end; k += kBlockK) {
      const std::byte* const record = RecordOf<Kind>(w, panel, k / kBlockK);
      uint32_t high[4], low[4], codes[2];
      FLOTILLA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int16_t* const values =
            args.x.values + int64_t{rows[i % 2]} * w.k + k + i / 2 * 16 + quarter * 4;
        uint32_t pairs[2];
        std::memcpy(pairs, values, sizeof pairs);
        low[i] = BytePermute(pairs[0], pairs[1], 0x6420);
        high[i] = BytePermute(pairs[0], pairs[1], 0x7531);
      }
      FLOTILLA_UNROLL
      for (int i = 0; i < 2; ++i) {
        codes[i] = FourCodes<Kind>(record, first_column + group, i * 16 + quarter * 4);
      }
      int32_t highs[4] = {}, lows[4] = {};
      MultiplyS8(highs, high, codes);
      MultiplyU8(lows, low, codes);
      FLOTILLA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* const sums =
            args.x.group_sums + int64_t{rows[i / 2]} * (w.k / kSumSpan) + k / kSumSpan;
        acc[i] = Kind::AddDot(record, columns[i % 2], highs[i] * 256 + lows[i], sums, acc[i]);
      }
    }
    float partial[4];
    for (int i = 0; i < 4; ++i) {
      partial[i] = args.x.scales[int64_t{rows[i / 2]} * w.split_count + split] * acc[i];
    }
    tree.Add(partial);
  }
  float total[4] = {};
  tree.Total(total);
  FLOTILLA_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + group + i / 2 * 8, column = panel * kPanelColumns + columns[i % 2];
    if (row >= args.rows || column >= w.columns) continue;
    float* const out = args.out + row * args.out_stride + column;
    *out = args.accumulate ? *out + total[i] : total[i];
  }
}

}  // namespace

int MatMulI16(const MatMulI16Args& args, Stream stream) {
  const Grid grid{.x = (args.weights.columns + kPanelColumns - 1) / kPanelColumns,
                  .y = (args.rows + kTileRows - 1) / kTileRows};
  return VisitKind(args.weights.kind, [&]<class Kind>() {
    if constexpr (Kind::kHasIntegerProduct) {
      return Launch<MatMulI16Kernel<Kind>, kThreads, NothingShared>("matmul_i16", grid, args,
                                                                    stream);
    }
    return 0;
  });
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
