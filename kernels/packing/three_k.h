// ThreeK: codes of 3 bits with a scale for each window and a factor for each 16, for Q3_K. 448
// bytes, and 64 for each window: 3.5625 bits per weight.
//
// A record is [2 halves][3 v][16 columns][2 j] 16-bit lanes, then the factors f [32 columns][2
// groups] int8. The three lanes of a column and j have the sixteen codes q of k = 2 n + j, in two's
// complement:
//
//   lane v    bits 13 - 3 i .. 15 - 3 i: n = 5 v + i, for i < 5
//             bit 0: bit v of n = 15
//
// So three 64-byte loads give sixteen operands of 16 columns x 2 k, and most take one or two
// shifts, which extend the sign. The window has d [32] fp16. weight = d f q.
#pragma once

#include <cmath>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct ThreeK {
  static constexpr int kRecordBytes = 448;
  static constexpr int kSuperBytes = 64;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .low = -4,
                                      .high = 3,
                                      .has_factors = true};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record, std::byte* super) {
    StoreAs(super + lane * 2, row.scales[k / kScaleGroup]);
    for (int group = 0; group < 2; ++group) {
      StoreAs(record + Factor(lane, group), row.factors[k / kFactorGroup + group]);
    }
    for (int j = 0; j < 2; ++j) {
      int lanes[3] = {};
      for (int n = 0; n < 15; ++n) {
        lanes[n / 5] |= (row.codes[k + 2 * n + j] & 7) << (13 - n % 5 * 3);
      }
      const int last = row.codes[k + 30 + j];
      for (int v = 0; v < 3; ++v) {
        StoreAs(record + Lane(lane, v) + j * 2, static_cast<uint16_t>(lanes[v] | (last >> v & 1)));
      }
    }
    return true;
  }

  static FLOTILLA_INLINE void Decode(const SuperRecord& record, int lane, float* out) {
    int codes[kBlockK];
    Codes(record.record, lane, codes);
    for (int k = 0; k < kBlockK; ++k) {
      out[k] = Scale(record, lane, k / kFactorGroup) * static_cast<float>(codes[k]);
    }
  }

  // For each group of 16: acc = fma(d f, float(dot), acc). The product d f is exact, and so is
  // float(dot).
  static FLOTILLA_INLINE float AddBlock(const SuperRecord& record, int lane, const int16_t* x,
                                        const float*, float acc) {
    int codes[kBlockK];
    Codes(record.record, lane, codes);
    for (int group = 0; group < 2; ++group) {
      int32_t dot = 0;
      for (int k = group * kFactorGroup; k < (group + 1) * kFactorGroup; ++k) {
        dot += x[k] * codes[k];
      }
      acc = std::fma(Scale(record, lane, group), static_cast<float>(dot), acc);
    }
    return acc;
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const SuperRecord& record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    typename S::I v[H][3];
    typename S::F scales[2][H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      Load<S>(record.record, half + h, v[h]);
      Scales<S>(record, half + h, scales[0][h], scales[1][h]);
    }
    Group<S, R, H, 0>(v, scales[0], x, acc);
    Group<S, R, H, 8>(v, scales[1], x, acc);
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    for (int half = 0; half < 2; ++half) {
      typename S::I v[3];
      typename S::F scales[2];
      Load<S>(record.record, half, v);
      Scales<S>(record, half, scales[0], scales[1]);
      DecodeFrom<S, 0>(v, scales, out + half * 16);
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup && kBlockK == 2 * kFactorGroup);
  static constexpr int kFactors = 384;  // bytes from a record's begin

  // Bytes from a record's begin to the pair of lanes v, and to the factor.
  static FLOTILLA_INLINE int Lane(int lane, int v) {
    return (lane / 16 * 3 + v) * 64 + lane % 16 * 4;
  }
  static FLOTILLA_INLINE int Factor(int lane, int group) { return kFactors + lane * 2 + group; }

  // d f of a group.
  static FLOTILLA_INLINE float Scale(const SuperRecord& record, int lane, int group) {
    return HalfToFloat(LoadAs<uint16_t>(record.super + lane * 2)) *
           static_cast<float>(LoadAs<int8_t>(record.record + Factor(lane, group)));
  }

  static FLOTILLA_INLINE void Codes(const std::byte* record, int lane, int (&codes)[kBlockK]) {
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

  template <class S>
  static FLOTILLA_INLINE void Scales(const SuperRecord& record, int half, typename S::F& first,
                                     typename S::F& second) {
    const auto d = S::LoadHalf(record.super + half * 32);
    const auto factors = S::WidenBytes(record.record + kFactors + half * 32);
    first = S::Mul(d, S::ToFloat(S::template Sar<16>(S::template Shl<16>(factors))));
    second = S::Mul(d, S::ToFloat(S::template Sar<16>(factors)));
  }

  template <class S>
  static FLOTILLA_INLINE void Load(const std::byte* record, int half, typename S::I (&v)[3]) {
    FLOTILLA_UNROLL
    for (int i = 0; i < 3; ++i) v[i] = S::ILoad(record + (half * 3 + i) * 64);
  }

  // The codes n as 16-bit lanes. Bits below the upper three do not matter before the last shift.
  template <class S, int n>
  static FLOTILLA_INLINE typename S::I Operand(const typename S::I (&v)[3]) {
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

  // The sums of the group of 16 that begins with codes n.
  template <class S, int R, int H, int n>
  static FLOTILLA_INLINE void Group(const typename S::I (&v)[H][3],
                                    const typename S::F (&scales)[H], const BlockRows<R>& x,
                                    TileSums<S, R * H>& acc) {
    // The groups do not wait for each other, so they count as outputs.
    constexpr int C = DotChains<S>(2 * R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    Step<S, R, H, C, n + 0>(dot, v, x);
    Step<S, R, H, C, n + 1>(dot, v, x);
    Step<S, R, H, C, n + 2>(dot, v, x);
    Step<S, R, H, C, n + 3>(dot, v, x);
    Step<S, R, H, C, n + 4>(dot, v, x);
    Step<S, R, H, C, n + 5>(dot, v, x);
    Step<S, R, H, C, n + 6>(dot, v, x);
    Step<S, R, H, C, n + 7>(dot, v, x);
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int i = 0; i < R * H; ++i) {
      acc.Set(i, S::Fma(scales[i % H], S::ToFloat(dots[i]), acc.Get(i)));
    }
  }

  template <class S, int R, int H, int C, int n>
  static FLOTILLA_INLINE void Step(typename S::I (&dot)[C][R * H], const typename S::I (&v)[H][3],
                                   const BlockRows<R>& x) {
    typename S::I weights[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) weights[h] = Operand<S, n>(v[h]);
    DotStep<S, R, H, C>(dot, n % C, weights, x, 2 * n);
  }

  template <class S, int n>
  static FLOTILLA_INLINE void DecodeFrom(const typename S::I (&v)[3],
                                         const typename S::F (&scales)[2], float* out) {
    const auto codes = Operand<S, n>(v);
    const auto scale = scales[n / 8];
    S::Store(out + 2 * n * kPanelColumns,
             S::Mul(scale, S::ToFloat(S::template Sar<16>(S::template Shl<16>(codes)))));
    S::Store(out + (2 * n + 1) * kPanelColumns,
             S::Mul(scale, S::ToFloat(S::template Sar<16>(codes))));
    if constexpr (n + 1 < 16) DecodeFrom<S, n + 1>(v, scales, out);
  }
};

}  // namespace flotilla::kernels
