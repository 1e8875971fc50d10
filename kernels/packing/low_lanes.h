// How codes of 2 and of 3 bits lie in a record, for the kinds that have them. Both give sixteen
// operands of 16 columns x 2 k, k = 2 n + j, by shifts and masks of 64-byte loads.
//
//   kBytes                     of 32 x 32 codes
//   kLoads                     the number of loads of a half
//   kLowest                    the least code; the others follow it
//   Pack(codes, lane, record)  packs the kBlockK codes of a column
//   Unpack(record, lane, codes)
//   Load<S>(record, half, v)   the loads of 16 columns
//   Operand<S, n>(v)           the codes of k = 2 n + j as 16-bit lanes [16 columns][2 j]
#pragma once

#include <cstdint>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"

namespace flotilla::kernels {

// [2 halves][kCount v][16 columns][2 j] 16-bit lanes, a load for each half and v.
template <int kCount>
struct LaneLoads {
  static constexpr int kLoads = kCount;
  static constexpr int kBytes = kLoads * 128;

  template <class S>
  static FLOTILLA_INLINE void Load(const std::byte* record, int half, typename S::I (&v)[kLoads]) {
    FLOTILLA_UNROLL
    for (int i = 0; i < kLoads; ++i) v[i] = S::ILoad(record + (half * kLoads + i) * 64);
  }

 protected:
  // Bytes from a record's begin to the pair of lanes v of a column.
  static FLOTILLA_INLINE int Lane(int lane, int v) {
    return (lane / 16 * kLoads + v) * 64 + lane % 16 * 4;
  }
};

// [2 halves][2 v][16 columns][2 j] 16-bit lanes. Bits 2 i and 2 i + 1 of lane v are the code
// n = 8 v + i.
struct TwoBitLanes : LaneLoads<2> {
  static constexpr int kLowest = 0;

  static FLOTILLA_INLINE void Pack(const int8_t* codes, int lane, std::byte* record) {
    for (int v = 0; v < 2; ++v) {
      for (int j = 0; j < 2; ++j) {
        int bits = 0;
        for (int i = 0; i < 8; ++i) bits |= (codes[v * 16 + 2 * i + j] & 3) << 2 * i;
        StoreAs(record + Lane(lane, v) + j * 2, static_cast<uint16_t>(bits));
      }
    }
  }

  static FLOTILLA_INLINE void Unpack(const std::byte* record, int lane, int (&codes)[kBlockK]) {
    for (int k = 0; k < kBlockK; ++k) {
      const auto bits = LoadAs<uint16_t>(record + Lane(lane, k / 16) + k % 2 * 2);
      codes[k] = bits >> k % 16 / 2 * 2 & 3;
    }
  }

  template <class S, int n>
  static FLOTILLA_INLINE typename S::I Operand(const typename S::I (&v)[kLoads]) {
    auto codes = v[n / 8];
    if constexpr (n % 8 > 0) codes = S::template Sar16<n % 8 * 2>(codes);
    return S::IAnd(codes, S::ISet1(0x00030003));
  }
};

// [2 halves][3 v][16 columns][2 j] 16-bit lanes. The three lanes of a column and j have the
// sixteen codes in two's complement:
//
//   lane v    bits 13 - 3 i .. 15 - 3 i: n = 5 v + i, for i < 5
//             bit 0: bit v of n = 15
//
// Most operands take one or two shifts, which extend the sign.
struct ThreeBitLanes : LaneLoads<3> {
  static constexpr int kLowest = -4;

  static FLOTILLA_INLINE void Pack(const int8_t* codes, int lane, std::byte* record) {
    for (int j = 0; j < 2; ++j) {
      int lanes[3] = {};
      for (int n = 0; n < 15; ++n) {
        lanes[n / 5] |= (codes[2 * n + j] & 7) << (13 - n % 5 * 3);
      }
      const int last = codes[30 + j];
      for (int v = 0; v < 3; ++v) {
        StoreAs(record + Lane(lane, v) + j * 2, static_cast<uint16_t>(lanes[v] | (last >> v & 1)));
      }
    }
  }

  static FLOTILLA_INLINE void Unpack(const std::byte* record, int lane, int (&codes)[kBlockK]) {
    for (int j = 0; j < 2; ++j) {
      int v[3];
      for (int i = 0; i < 3; ++i) v[i] = LoadAs<uint16_t>(record + Lane(lane, i) + j * 2);
      for (int n = 0; n < 16; ++n) {
        const int code = n < 15 ? v[n / 5] >> (13 - n % 5 * 3) & 7
                                : (v[0] & 1) | (v[1] & 1) << 1 | (v[2] & 1) << 2;
        codes[2 * n + j] = (code ^ 4) - 4;
      }
    }
  }

  // Bits below the upper three do not matter before the last shift.
  template <class S, int n>
  static FLOTILLA_INLINE typename S::I Operand(const typename S::I (&v)[kLoads]) {
    if constexpr (n == 15) {
      const auto low = S::IAnd(S::template Shl16<13>(v[0]), S::ISet1(0x20002000));
      const auto middle = S::IAnd(S::template Shl16<14>(v[1]), S::ISet1(0x40004000));
      return S::template Sar16<13>(S::IOr(S::IOr(low, middle), S::template Shl16<15>(v[2])));
    } else if constexpr (n % 5 == 0) {
      return S::template Sar16<13>(v[n / 5]);
    } else {
      return S::template Sar16<13>(S::template Shl16<n % 5 * 3>(v[n / 5]));
    }
  }
};

// dot[r][h] += the codes [n, end) of v[h] . x[r].
template <class Lanes, class S, int R, int H, int C, int n, int end>
FLOTILLA_INLINE void DotCodes(typename S::I (&dot)[C][R * H],
                              const typename S::I (&v)[H][Lanes::kLoads], const BlockRows<R>& x) {
  typename S::I weights[H];
  FLOTILLA_UNROLL
  for (int h = 0; h < H; ++h) weights[h] = Lanes::template Operand<S, n>(v[h]);
  DotStep<S, R, H, C>(dot, n % C, weights, x, 2 * n);
  if constexpr (n + 1 < end) DotCodes<Lanes, S, R, H, C, n + 1, end>(dot, v, x);
}

}  // namespace flotilla::kernels
