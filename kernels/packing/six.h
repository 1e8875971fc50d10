// Six: codes of 6 bits with a scale for each 32 and a factor for each 16. 896 bytes: 7 bits per
// weight.
//
// A record is [2 halves][2 groups][3 v][16 columns][2 j] 16-bit lanes, then d [32] fp16, then the
// factors f [2 halves][16 columns][2 groups] int8. The three lanes of a group, a column and j have
// the eight codes q of k = 16 group + 2 n + j, in two's complement:
//
//   lane v    bits 10..15: n = v     bits 4..9: n = 3 + v
//             bits 0..3 of v = 0 and 1: the upper 4 bits of n = 6 and 7
//             of v = 2: the lower 2 bits of n = 6, then of n = 7
//
// So three 64-byte loads give eight operands of 16 columns x 2 k, and most take one or two shifts,
// which extend the sign. weight = d f q.
#pragma once

#include <cmath>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct Six {
  static constexpr int kRecordBytes = 896;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .low = -32,
                                      .high = 31,
                                      .has_factors = true};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record) {
    StoreAs(record + kScales + lane * 2, row.scales[k / kScaleGroup]);
    for (int group = 0; group < 2; ++group) {
      StoreAs(record + Factor(lane, group), row.factors[k / kFactorGroup + group]);
      for (int j = 0; j < 2; ++j) {
        int q[8];
        for (int n = 0; n < 8; ++n) q[n] = row.codes[k + group * 16 + n * 2 + j] & 63;
        const int low[3] = {q[6] >> 2, q[7] >> 2, (q[6] & 3) | (q[7] & 3) << 2};
        for (int v = 0; v < 3; ++v) {
          StoreAs(record + Lane(lane, group, v) + j * 2,
                  static_cast<uint16_t>(q[v] << 10 | q[3 + v] << 4 | low[v]));
        }
      }
    }
    return true;
  }

  static FLOTILLA_INLINE void Decode(const std::byte* record, int lane, float* out) {
    for (int group = 0; group < 2; ++group, out += kFactorGroup) {
      int codes[kFactorGroup];
      Codes(record, lane, group, codes);
      const float scale = Scale(record, lane, group);
      for (int i = 0; i < kFactorGroup; ++i) out[i] = scale * static_cast<float>(codes[i]);
    }
  }

  // For each group of 16: acc = fma(d f, float(dot), acc). The product d f is exact, and a dot is
  // at most 16 x 32 x 32767 < 2^24, so float(dot) is exact, too.
  static FLOTILLA_INLINE float AddBlock(const std::byte* record, int lane, const int16_t* x,
                                        const float*, float acc) {
    for (int group = 0; group < 2; ++group, x += kFactorGroup) {
      int codes[kFactorGroup];
      Codes(record, lane, group, codes);
      int32_t dot = 0;
      for (int i = 0; i < kFactorGroup; ++i) dot += x[i] * codes[i];
      acc = std::fma(Scale(record, lane, group), static_cast<float>(dot), acc);
    }
    return acc;
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const std::byte* record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    typename S::F scales[2][H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) Scales<S>(record, half + h, scales[0][h], scales[1][h]);
    FLOTILLA_UNROLL
    for (int group = 0; group < 2; ++group) {
      // The groups do not wait for each other, so they count as outputs.
      constexpr int C = DotChains<S>(2 * R * H);
      typename S::I dot[C][R * H];
      ClearDots<S>(dot);
      typename S::I v[H][3];
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) Load<S>(record, half + h, group, v[h]);
      const int k = group * kFactorGroup;
      Step<S, R, H, C, 0>(dot, v, x, k);
      Step<S, R, H, C, 1>(dot, v, x, k);
      Step<S, R, H, C, 2>(dot, v, x, k);
      Step<S, R, H, C, 3>(dot, v, x, k);
      Step<S, R, H, C, 4>(dot, v, x, k);
      Step<S, R, H, C, 5>(dot, v, x, k);
      Step<S, R, H, C, 6>(dot, v, x, k);
      Step<S, R, H, C, 7>(dot, v, x, k);
      typename S::I dots[R * H];
      SumChains<S>(dot, dots);
      FLOTILLA_UNROLL
      for (int i = 0; i < R * H; ++i) {
        acc.Set(i, S::Fma(scales[group][i % H], S::ToFloat(dots[i]), acc.Get(i)));
      }
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const std::byte* record, float* out) {
    for (int half = 0; half < 2; ++half) {
      typename S::F scales[2];
      Scales<S>(record, half, scales[0], scales[1]);
      for (int group = 0; group < 2; ++group) {
        typename S::I v[3];
        Load<S>(record, half, group, v);
        const auto store = [&](typename S::I codes, int n) FLOTILLA_INLINE_LAMBDA {
          float* p = out + (group * kFactorGroup + n * 2) * kPanelColumns + half * 16;
          const auto even = S::template Sar<16>(S::template Shl<16>(codes));
          S::Store(p, S::Mul(scales[group], S::ToFloat(even)));
          S::Store(p + kPanelColumns,
                   S::Mul(scales[group], S::ToFloat(S::template Sar<16>(codes))));
        };
        store(Operand<S, 0>(v), 0);
        store(Operand<S, 1>(v), 1);
        store(Operand<S, 2>(v), 2);
        store(Operand<S, 3>(v), 3);
        store(Operand<S, 4>(v), 4);
        store(Operand<S, 5>(v), 5);
        store(Operand<S, 6>(v), 6);
        store(Operand<S, 7>(v), 7);
      }
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup && kBlockK == 2 * kFactorGroup);
  static constexpr int kScales = 768, kFactors = 832;  // bytes from a record's begin

  // Bytes from a record's begin to the pair of lanes v, and to the factor.
  static FLOTILLA_INLINE int Lane(int lane, int group, int v) {
    return ((lane / 16 * 2 + group) * 3 + v) * 64 + lane % 16 * 4;
  }
  static FLOTILLA_INLINE int Factor(int lane, int group) { return kFactors + lane * 2 + group; }

  // d f of a group.
  static FLOTILLA_INLINE float Scale(const std::byte* record, int lane, int group) {
    return HalfToFloat(LoadAs<uint16_t>(record + kScales + lane * 2)) *
           static_cast<float>(LoadAs<int8_t>(record + Factor(lane, group)));
  }

  // The codes of a group.
  static FLOTILLA_INLINE void Codes(const std::byte* record, int lane, int group, int* codes) {
    for (int j = 0; j < 2; ++j) {
      int v[3];
      for (int i = 0; i < 3; ++i) v[i] = LoadAs<uint16_t>(record + Lane(lane, group, i) + j * 2);
      const int q[8] = {v[0] >> 10,
                        v[1] >> 10,
                        v[2] >> 10,
                        v[0] >> 4 & 63,
                        v[1] >> 4 & 63,
                        v[2] >> 4 & 63,
                        (v[0] & 15) << 2 | (v[2] & 3),
                        (v[1] & 15) << 2 | (v[2] >> 2 & 3)};
      for (int n = 0; n < 8; ++n) codes[n * 2 + j] = (q[n] ^ 32) - 32;
    }
  }

  template <class S>
  static FLOTILLA_INLINE void Scales(const std::byte* record, int half, typename S::F& first,
                                     typename S::F& second) {
    const auto d = S::LoadHalf(record + kScales + half * 32);
    const auto factors = S::WidenBytes(record + kFactors + half * 32);
    first = S::Mul(d, S::ToFloat(S::template Sar<16>(S::template Shl<16>(factors))));
    second = S::Mul(d, S::ToFloat(S::template Sar<16>(factors)));
  }

  template <class S>
  static FLOTILLA_INLINE void Load(const std::byte* record, int half, int group,
                                   typename S::I (&v)[3]) {
    FLOTILLA_UNROLL
    for (int i = 0; i < 3; ++i) v[i] = S::ILoad(record + ((half * 2 + group) * 3 + i) * 64);
  }

  // The codes n as 16-bit lanes. Bits below the upper six do not matter before the last shift.
  template <class S, int n>
  static FLOTILLA_INLINE typename S::I Operand(const typename S::I (&v)[3]) {
    if constexpr (n < 3) {
      return S::template Sar16<10>(v[n]);
    } else if constexpr (n < 6) {
      return S::template Sar16<10>(S::template Shl16<6>(v[n - 3]));
    } else {
      const auto upper = S::template Shl16<12>(v[n - 6]);
      const auto lower = n == 6 ? S::template Shl16<10>(v[2]) : S::template Shl16<8>(v[2]);
      return S::template Sar16<10>(S::IOr(upper, S::IAnd(lower, S::ISet1(0x0C000C00))));
    }
  }

  template <class S, int R, int H, int C, int n>
  static FLOTILLA_INLINE void Step(typename S::I (&dot)[C][R * H], const typename S::I (&v)[H][3],
                                   const BlockRows<R>& x, int k) {
    typename S::I weights[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) weights[h] = Operand<S, n>(v[h]);
    DotStep<S, R, H, C>(dot, n % C, weights, x, k + 2 * n);
  }
};

}  // namespace flotilla::kernels
