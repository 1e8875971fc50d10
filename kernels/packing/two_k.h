// TwoK: codes of 2 bits with a scale and a minimum for each window, and factors of both for each
// 16, for Q2_K. 320 bytes, and 128 for each window: 2.625 bits per weight.
//
// A record is the codes q (TwoBitLanes), then the factors [32 columns][2 groups], a byte with f in
// its low nibble and g in its high one. The window has d [32] fp16, m [32] fp16. weight = d f q +
// m g. The products are exact.
#pragma once

#include <cmath>

#include "kernels/packing/kind.h"
#include "kernels/packing/low_lanes.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct TwoK {
  using Lanes = TwoBitLanes;
  static constexpr int kRecordBytes = 320;
  static constexpr int kSuperBytes = 128;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .low = 0,
                                      .high = 3,
                                      .has_factors = true,
                                      .has_minimums = true,
                                      .has_minimum_factors = true};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record, std::byte* super) {
    StoreAs(super + lane * 2, row.scales[k / kScaleGroup]);
    StoreAs(super + kMinimums + lane * 2, row.minimums[k / kScaleGroup]);
    for (int group = 0; group < 2; ++group) {
      const int f = row.factors[k / kFactorGroup + group];
      const int g = row.minimum_factors[k / kFactorGroup + group];
      if (((f | g) & ~15) != 0) return false;
      StoreAs(record + Factors(lane, group), static_cast<uint8_t>(f | g << 4));
    }
    Lanes::Pack(row.codes + k, lane, record);
    return true;
  }

  static FLOTILLA_INLINE void Decode(const SuperRecord& record, int lane, float* out) {
    int codes[kBlockK];
    Lanes::Unpack(record.record, lane, codes);
    for (int k = 0; k < kBlockK; ++k) {
      const int group = k / kFactorGroup;
      out[k] =
          Scale(record, lane, group) * static_cast<float>(codes[k]) + Minimum(record, lane, group);
    }
  }

  // For each group of 16: acc = fma(d f, float(dot), acc), then acc = fma(m g, sum, acc).
  static FLOTILLA_INLINE float AddBlock(const SuperRecord& record, int lane, const int16_t* x,
                                        const float* sums, float acc) {
    int codes[kBlockK];
    Lanes::Unpack(record.record, lane, codes);
    for (int group = 0; group < 2; ++group) {
      int32_t dot = 0;
      for (int k = group * kFactorGroup; k < (group + 1) * kFactorGroup; ++k) {
        dot += x[k] * codes[k];
      }
      acc = std::fma(Scale(record, lane, group), static_cast<float>(dot), acc);
      acc = std::fma(Minimum(record, lane, group), group == 0 ? sums[1] : sums[0] - sums[1], acc);
    }
    return acc;
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const SuperRecord& record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    typename S::I v[H][Lanes::kLoads];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) Lanes::Load<S>(record.record, half + h, v[h]);
    Group<S, R, H, 0>(record, half, v, x, acc);
    Group<S, R, H, 1>(record, half, v, x, acc);
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    for (int half = 0; half < 2; ++half) {
      typename S::I v[Lanes::kLoads];
      Lanes::Load<S>(record.record, half, v);
      typename S::F d[2], m[2];
      for (int group = 0; group < 2; ++group) Scales<S>(record, half, group, d[group], m[group]);
      DecodeFrom<S, 0>(v, d, m, out + half * 16);
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup && kBlockK == 2 * kFactorGroup);
  static_assert(kBlockK == kActivationGroup && kFactorGroup == kSumSpan);
  static constexpr int kFactorsBegin = Lanes::kBytes;  // bytes from a record's begin
  static constexpr int kMinimums = 64;                 // bytes from the first scale

  // Bytes from a record's begin.
  static FLOTILLA_INLINE int Factors(int lane, int group) {
    return kFactorsBegin + lane * 2 + group;
  }

  // d f, and m g, of a group.
  static FLOTILLA_INLINE float Scale(const SuperRecord& record, int lane, int group) {
    const int f = LoadAs<uint8_t>(record.record + Factors(lane, group)) & 15;
    return HalfToFloat(LoadAs<uint16_t>(record.super + lane * 2)) * static_cast<float>(f);
  }
  static FLOTILLA_INLINE float Minimum(const SuperRecord& record, int lane, int group) {
    const int g = LoadAs<uint8_t>(record.record + Factors(lane, group)) >> 4;
    return HalfToFloat(LoadAs<uint16_t>(record.super + kMinimums + lane * 2)) *
           static_cast<float>(g);
  }
  template <class S>
  static FLOTILLA_INLINE void Scales(const SuperRecord& record, int half, int group,
                                     typename S::F& d, typename S::F& m) {
    auto factors = S::WidenBytes(record.record + kFactorsBegin + half * 32);
    if (group == 1) factors = S::template Shr<16>(factors);
    const auto mask = S::ISet1(15);
    d = S::Mul(S::LoadHalf(record.super + half * 32), S::ToFloat(S::IAnd(factors, mask)));
    m = S::Mul(S::LoadHalf(record.super + kMinimums + half * 32),
               S::ToFloat(S::IAnd(S::template Shr<4>(factors), mask)));
  }

  template <class S, int R, int H, int kGroup>
  static FLOTILLA_INLINE void Group(const SuperRecord& record, int half,
                                    const typename S::I (&v)[H][Lanes::kLoads],
                                    const BlockRows<R>& x, TileSums<S, R * H>& acc) {
    // The groups do not wait for each other, so they count as outputs.
    constexpr int C = DotChains<S>(2 * R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    DotCodes<Lanes, S, R, H, C, kGroup * 8, kGroup * 8 + 8>(dot, v, x);
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      typename S::F d, m;
      Scales<S>(record, half + h, kGroup, d, m);
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const int i = r * H + h;
        const auto sum = S::Fma(d, S::ToFloat(dots[i]), acc.Get(i));
        acc.Set(i, S::Fma(m, S::Set1(x.half_sum(r, kGroup)), sum));
      }
    }
  }

  template <class S, int n>
  static FLOTILLA_INLINE void DecodeFrom(const typename S::I (&v)[Lanes::kLoads],
                                         const typename S::F (&d)[2], const typename S::F (&m)[2],
                                         float* out) {
    const auto two = Lanes::Operand<S, n>(v);
    S::Store(out + 2 * n * kPanelColumns,
             S::Fma(d[n / 8], S::ToFloat(S::IAnd(two, S::ISet1(0xFFFF))), m[n / 8]));
    S::Store(out + (2 * n + 1) * kPanelColumns,
             S::Fma(d[n / 8], S::ToFloat(S::template Shr<16>(two)), m[n / 8]));
    if constexpr (n + 1 < 16) DecodeFrom<S, n + 1>(v, d, m, out);
  }
};

}  // namespace flotilla::kernels
