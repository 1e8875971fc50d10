// Reductions of a block whose result does not depend on their order.
#pragma once

#include "kernels/cuda/simt.h"
#include "kernels/row_scores.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {

// Memory for one value of each warp.
template <class T, int kThreads>
struct PerWarp {
  T values[kThreads / kWarp];
};

// Combines the values of all threads, and gives the result to all of them. `combine` takes two
// values in either order, and gives the same. All threads call it.
template <class T, int kThreads, class Combine>
FLOTILLA_DEVICE T ReduceBlock(T value, PerWarp<T, kThreads>& shared, const Combine& combine) {
  for (int mask = kWarp / 2; mask >= 1; mask /= 2) value = combine(value, ShuffleXor(value, mask));
  if (LaneOf(Thread()) == 0) shared.values[WarpOf(Thread())] = value;
  SyncThreads();
  value = shared.values[0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) value = combine(value, shared.values[warp]);
  SyncThreads();  // before the next call writes
  return value;
}

// The better score; of equal ones that with the lower id. A NaN never wins.
FLOTILLA_DEVICE bool IsBetter(const TokenScore& a, const TokenScore& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

template <int kThreads>
FLOTILLA_DEVICE TokenScore BestOfBlock(const TokenScore& own,
                                       PerWarp<TokenScore, kThreads>& shared) {
  // A token score is two words.
  TokenScore best = own;
  const auto take = [&best](const TokenScore& other) {
    if (IsBetter(other, best)) best = other;
  };
  for (int mask = kWarp / 2; mask >= 1; mask /= 2) {
    const int32_t token = ShuffleXor(best.token, mask);
    const float score = ShuffleXor(best.score, mask);
    take({token, score});
  }
  if (LaneOf(Thread()) == 0) shared.values[WarpOf(Thread())] = best;
  SyncThreads();
  for (int warp = 0; warp < kThreads / kWarp; ++warp) take(shared.values[warp]);
  SyncThreads();
  return best;
}

// The lane tree of kernels/ops.h over `kLanes` lanes of the warp, which begin at a multiple of
// kLanes; the first of them gets it.
template <int kLanes>
FLOTILLA_DEVICE float LaneTree(float value) {
  for (int half = kLanes / 2; half >= 1; half /= 2) value += ShuffleDown(value, half);
  return value;
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
