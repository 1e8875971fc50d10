// Integer dot products of a tile of R rows by H halves of 16 columns: what the kinds of packed
// weights that have an integer product share (kernels/packing/).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/packing/kind.h"

namespace flotilla::kernels {

// The activations of R rows in one block of K.
template <int R>
struct BlockRows {
  const int16_t* const (&values)[R];  // the rows
  const float* sums;                  // [R, groups, 2] of the rows' activation groups
  int groups;
  int block;

  // The sum of the block's activation group in row r.
  FLOTILLA_INLINE float sum(int r) const {
    static_assert(kBlockK == kActivationGroup);
    return sums[(r * groups + block) * 2];
  }
  // Those of its two halves.
  FLOTILLA_INLINE float half_sum(int r, int half) const {
    const float first = sums[(r * groups + block) * 2 + 1];
    return half == 0 ? first : sum(r) - first;
  }
};

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

template <class S, int N, int C>
FLOTILLA_INLINE void ClearDots(typename S::I (&dot)[C][N]) {
  FLOTILLA_UNROLL
  for (int c = 0; c < C; ++c) {
    FLOTILLA_UNROLL
    for (int i = 0; i < N; ++i) dot[c][i] = S::IZero();
  }
}

// One packed step of 2 k, from k of the block on: dot[r][h] += weights[h] . x[r].
template <class S, int R, int H, int C>
FLOTILLA_INLINE void DotStep(typename S::I (&dot)[C][R * H], int chain,
                             const typename S::I (&weights)[H], const BlockRows<R>& x, int k) {
  FLOTILLA_UNROLL
  for (int r = 0; r < R; ++r) {
    const auto pair = S::BroadcastPair(x.values[r] + x.block * kBlockK + k);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      dot[chain][r * H + h] = S::DotPairs(dot[chain][r * H + h], weights[h], pair);
    }
  }
}

// Adds up the chains of each dot product.
template <class S, int N, int C>
FLOTILLA_INLINE void SumChains(const typename S::I (&dot)[C][N], typename S::I (&dots)[N]) {
  FLOTILLA_UNROLL
  for (int i = 0; i < N; ++i) {
    typename S::I sum = dot[0][i];
    FLOTILLA_UNROLL
    for (int c = 1; c < C; ++c) sum = S::IAdd(sum, dot[c][i]);
    dots[i] = sum;
  }
}

}  // namespace flotilla::kernels
