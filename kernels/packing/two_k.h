// TwoK: codes of 2 bits with a scale and a minimum for each window, and factors of both for each
// 16, for Q2_K. 320 bytes, and 128 for each window: 2.625 bits per weight.
//
// A record is [2 halves][2 groups][16 columns][2 j] 16-bit lanes, then the factors [32 columns][2
// groups], a byte with f in its low nibble and g in its high one. Bits 2 n and 2 n + 1 of a lane
// are the code q of k = 16 group + 2 n + j, so one 64-byte load gives eight operands of 16 columns
// x 2 k by shift and mask. The window has d [32] fp16, m [32] fp16. weight = d f q + m g. The
// products are exact.
#pragma once

#include <cmath>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct TwoK {
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
      for (int j = 0; j < 2; ++j) {
        int codes = 0;
        for (int n = 0; n < 8; ++n) {
          codes |= (row.codes[k + group * kFactorGroup + 2 * n + j] & 3) << 2 * n;
        }
        StoreAs(record + Lane(lane, group) + j * 2, static_cast<uint16_t>(codes));
      }
    }
    return true;
  }

  static FLOTILLA_INLINE void Decode(const SuperRecord& record, int lane, float* out) {
    for (int k = 0; k < kBlockK; ++k) {
      const int group = k / kFactorGroup;
      out[k] = Scale(record, lane, group) * static_cast<float>(Code(record.record, lane, k)) +
               Minimum(record, lane, group);
    }
  }

  // For each group of 16: acc = fma(d f, float(dot), acc), then acc = fma(m g, sum, acc).
  static FLOTILLA_INLINE float AddBlock(const SuperRecord& record, int lane, const int16_t* x,
                                        const float* sums, float acc) {
    for (int group = 0; group < 2; ++group) {
      int32_t dot = 0;
      for (int k = group * kFactorGroup; k < (group + 1) * kFactorGroup; ++k) {
        dot += x[k] * Code(record.record, lane, k);
      }
      acc = std::fma(Scale(record, lane, group), static_cast<float>(dot), acc);
      acc = std::fma(Minimum(record, lane, group), group == 0 ? sums[1] : sums[0] - sums[1], acc);
    }
    return acc;
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const SuperRecord& record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    Group<S, R, H, 0>(record, half, x, acc);
    Group<S, R, H, 1>(record, half, x, acc);
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    for (int half = 0; half < 2; ++half) {
      for (int group = 0; group < 2; ++group) {
        typename S::F d, m;
        Scales<S>(record, half, group, d, m);
        const auto codes = S::ILoad(record.record + (half * 2 + group) * 64);
        DecodeFrom<S, 0>(codes, d, m, out + group * kFactorGroup * kPanelColumns + half * 16);
      }
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup && kBlockK == 2 * kFactorGroup);
  static_assert(kBlockK == kActivationGroup && kFactorGroup == kSumSpan);
  static constexpr int kFactorsBegin = 256;  // bytes from a record's begin
  static constexpr int kMinimums = 64;       // bytes from the first scale

  // Bytes from a record's begin to the pair of lanes of a group, and to its factors.
  static FLOTILLA_INLINE int Lane(int lane, int group) {
    return (lane / 16 * 2 + group) * 64 + lane % 16 * 4;
  }
  static FLOTILLA_INLINE int Factors(int lane, int group) {
    return kFactorsBegin + lane * 2 + group;
  }

  static FLOTILLA_INLINE int Code(const std::byte* record, int lane, int k) {
    const int at = Lane(lane, k / kFactorGroup) + k % 2 * 2;
    return LoadAs<uint16_t>(record + at) >> k % kFactorGroup / 2 * 2 & 3;
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

  // The codes n as 16-bit lanes.
  template <class S, int n>
  static FLOTILLA_INLINE typename S::I Operand(typename S::I codes) {
    if constexpr (n > 0) codes = S::template Sar16<2 * n>(codes);
    return S::IAnd(codes, S::ISet1(0x00030003));
  }

  template <class S, int R, int H, int kGroup>
  static FLOTILLA_INLINE void Group(const SuperRecord& record, int half, const BlockRows<R>& x,
                                    TileSums<S, R * H>& acc) {
    // The groups do not wait for each other, so they count as outputs.
    constexpr int C = DotChains<S>(2 * R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    typename S::I codes[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      codes[h] = S::ILoad(record.record + ((half + h) * 2 + kGroup) * 64);
    }
    constexpr int k = kGroup * kFactorGroup;
    Step<S, R, H, C, 0>(dot, codes, x, k);
    Step<S, R, H, C, 1>(dot, codes, x, k);
    Step<S, R, H, C, 2>(dot, codes, x, k);
    Step<S, R, H, C, 3>(dot, codes, x, k);
    Step<S, R, H, C, 4>(dot, codes, x, k);
    Step<S, R, H, C, 5>(dot, codes, x, k);
    Step<S, R, H, C, 6>(dot, codes, x, k);
    Step<S, R, H, C, 7>(dot, codes, x, k);
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

  template <class S, int R, int H, int C, int n>
  static FLOTILLA_INLINE void Step(typename S::I (&dot)[C][R * H], const typename S::I (&codes)[H],
                                   const BlockRows<R>& x, int k) {
    typename S::I weights[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) weights[h] = Operand<S, n>(codes[h]);
    DotStep<S, R, H, C>(dot, n % C, weights, x, k + 2 * n);
  }

  template <class S, int n>
  static FLOTILLA_INLINE void DecodeFrom(typename S::I codes, typename S::F d, typename S::F m,
                                         float* out) {
    const auto two = Operand<S, n>(codes);
    S::Store(out + 2 * n * kPanelColumns, S::Fma(d, S::ToFloat(S::IAnd(two, S::ISet1(0xFFFF))), m));
    S::Store(out + (2 * n + 1) * kPanelColumns, S::Fma(d, S::ToFloat(S::template Shr<16>(two)), m));
    if constexpr (n + 1 < 8) DecodeFrom<S, n + 1>(codes, d, m, out);
  }
};

}  // namespace flotilla::kernels
