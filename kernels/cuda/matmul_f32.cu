// matmul_f32: a block of threads for 8 rows and a panel of 32 columns, with a thread for each
// output. Weights of several records at a time are decoded to shared memory, a warp for each.
#include <cmath>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/weights.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = kThreads / kPanelColumns;
constexpr int kStageBlocks = kThreads / kWarp;
constexpr int kStage = kStageBlocks * kBlockK;

struct MatMulShared {
  float weights[kStage][kPanelColumns];
  float x[kTileRows][kStage];
};

template <class Kind>
FLOTILLA_KERNEL(kThreads)
MatMulF32Kernel(const MatMulF32Args args) {
  MatMulShared& shared = Shared<MatMulShared>();
  const Matrix& w = args.weights;
  const int panel = BlockX(), first_row = BlockY() * kTileRows;
  const int lane = LaneOf(Thread()), warp = WarpOf(Thread());
  SplitTree<1, kMostLevels> tree;
  float acc[1] = {};
  int split = 0;
  for (int stage = 0; stage < w.k; stage += kStage) {
    const int count = w.k - stage < kStage ? w.k - stage : kStage;
    if (warp * kBlockK < count) {
      float weights[kBlockK];
      Kind::Decode(RecordOf<Kind>(w, panel, stage / kBlockK + warp), lane, weights);
      FLOTILLA_UNROLL
      for (int i = 0; i < kBlockK; ++i) shared.weights[warp * kBlockK + i][lane] = weights[i];
    }
    // The warp's row.
    for (int i = lane; i < count && first_row + warp < args.rows; i += kWarp) {
      shared.x[warp][i] = args.x[(first_row + warp) * args.x_stride + stage + i];
    }
    SyncThreads();
    for (int block = 0; block < count; block += kBlockK) {
      // A split ends with a block, and may be empty.
      for (; stage + block == w.split_ends[split]; ++split) {
        tree.Add(acc);
        acc[0] = 0;
      }
      for (int i = block; i < block + kBlockK; ++i) {
        acc[0] = std::fma(shared.x[warp][i], shared.weights[i][lane], acc[0]);
      }
    }
    SyncThreads();
  }
  for (; split < w.split_count; ++split) {
    tree.Add(acc);
    acc[0] = 0;
  }
  float total[1] = {};
  tree.Total(total);
  const int row = first_row + warp, column = panel * kPanelColumns + lane;
  if (row >= args.rows || column >= w.columns) return;
  float* const out = args.out + row * args.out_stride + column;
  *out = args.accumulate ? *out + total[0] : total[0];
}

}  // namespace

int MatMulF32(const MatMulF32Args& args, Stream stream) {
  const Grid grid{.x = (args.weights.columns + kPanelColumns - 1) / kPanelColumns,
                  .y = (args.rows + kTileRows - 1) / kTileRows};
  return VisitKind(args.weights.kind, [&]<class Kind>() {
    return Launch<MatMulF32Kernel<Kind>, kThreads, MatMulShared>("matmul_f32", grid, args, stream);
  });
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
