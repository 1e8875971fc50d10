// ThreeK: codes of 3 bits with a scale for each window and a factor for each 16, for Q3_K. 448
// bytes, and 64 for each window: 3.5625 bits per weight.
//
// A record is the codes q (ThreeBitLanes), then the factors f [32 columns][2 groups] int8. The
// window has d [32] fp16. weight = d f q.
#pragma once

#include <cmath>

#include "kernels/packing/kind.h"
#include "kernels/packing/low_lanes.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct ThreeK {
  using Lanes = ThreeBitLanes;
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
    Lanes::Pack(row.codes + k, lane, record);
    return true;
  }

  static FLOTILLA_INLINE void Decode(const SuperRecord& record, int lane, float* out) {
    int codes[kBlockK];
    Lanes::Unpack(record.record, lane, codes);
    for (int k = 0; k < kBlockK; ++k) {
      out[k] = Scale(record, lane, k / kFactorGroup) * static_cast<float>(codes[k]);
    }
  }

  // For each group of 16: acc = fma(d f, float(dot), acc). The product d f is exact, and so is
  // float(dot).
  static FLOTILLA_INLINE float AddBlock(const SuperRecord& record, int lane, const int16_t* x,
                                        const float*, float acc) {
    int codes[kBlockK];
    Lanes::Unpack(record.record, lane, codes);
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
    typename S::I v[H][Lanes::kLoads];
    typename S::F scales[2][H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      Lanes::Load<S>(record.record, half + h, v[h]);
      Scales<S>(record, half + h, scales[0][h], scales[1][h]);
    }
    Group<S, R, H, 0>(v, scales[0], x, acc);
    Group<S, R, H, 8>(v, scales[1], x, acc);
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    for (int half = 0; half < 2; ++half) {
      typename S::I v[Lanes::kLoads];
      typename S::F scales[2];
      Lanes::Load<S>(record.record, half, v);
      Scales<S>(record, half, scales[0], scales[1]);
      DecodeFrom<S, 0>(v, scales, out + half * 16);
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup && kBlockK == 2 * kFactorGroup);
  static constexpr int kFactors = Lanes::kBytes;  // bytes from a record's begin

  // Bytes from a record's begin.
  static FLOTILLA_INLINE int Factor(int lane, int group) { return kFactors + lane * 2 + group; }

  // d f of a group.
  static FLOTILLA_INLINE float Scale(const SuperRecord& record, int lane, int group) {
    return HalfToFloat(LoadAs<uint16_t>(record.super + lane * 2)) *
           static_cast<float>(LoadAs<int8_t>(record.record + Factor(lane, group)));
  }

  template <class S>
  static FLOTILLA_INLINE void Scales(const SuperRecord& record, int half, typename S::F& first,
                                     typename S::F& second) {
    const auto d = S::LoadHalf(record.super + half * 32);
    const auto factors = S::WidenBytes(record.record + kFactors + half * 32);
    first = S::Mul(d, S::ToFloat(S::template Sar<16>(S::template Shl<16>(factors))));
    second = S::Mul(d, S::ToFloat(S::template Sar<16>(factors)));
  }

  // The sums of the group of 16 that begins with codes n.
  template <class S, int R, int H, int n>
  static FLOTILLA_INLINE void Group(const typename S::I (&v)[H][Lanes::kLoads],
                                    const typename S::F (&scales)[H], const BlockRows<R>& x,
                                    TileSums<S, R * H>& acc) {
    // The groups do not wait for each other, so they count as outputs.
    constexpr int C = DotChains<S>(2 * R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    DotCodes<Lanes, S, R, H, C, n, n + 8>(dot, v, x);
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int i = 0; i < R * H; ++i) {
      acc.Set(i, S::Fma(scales[i % H], S::ToFloat(dots[i]), acc.Get(i)));
    }
  }

  template <class S, int n>
  static FLOTILLA_INLINE void DecodeFrom(const typename S::I (&v)[Lanes::kLoads],
                                         const typename S::F (&scales)[2], float* out) {
    const auto codes = Lanes::Operand<S, n>(v);
    const auto scale = scales[n / 8];
    S::Store(out + 2 * n * kPanelColumns,
             S::Mul(scale, S::ToFloat(S::template Sar<16>(S::template Shl<16>(codes)))));
    S::Store(out + (2 * n + 1) * kPanelColumns,
             S::Mul(scale, S::ToFloat(S::template Sar<16>(codes))));
    if constexpr (n + 1 < 16) DecodeFrom<S, n + 1>(v, scales, out);
  }
};

}  // namespace flotilla::kernels
