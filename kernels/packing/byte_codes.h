// What the kinds of codes of 8 bits share.
//
// A record is [2 halves][16 pairs][16 columns][2 j] int8, k = 2 pair + j, and then, per column,
// what the 32 weights have in common:
//   kFp16   d [32] fp16. weight = d q.
//   kFp32   d [32] fp32. weight = d q.
//   kZeros  ScaleAndZero [32]: d and a zero z. weight = d (q - z).
#pragma once

#include <cmath>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/packing/scale_and_zero.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

enum class ByteScaling { kFp16, kFp32, kZeros };

template <ByteScaling kScaling>
struct ByteCodes {
  static constexpr int kScales = 1024;  // bytes from a record's begin
  static constexpr int kRecordBytes = kScales + (kScaling == ByteScaling::kFp16 ? 64 : 128);
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;
  static constexpr bool kZeros = kScaling == ByteScaling::kZeros;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    if constexpr (kZeros) return encoding.has_zeros && PacksWithZeros(encoding, -128, -128);
    const bool fp16 = encoding.scales == WeightEncoding::Scales::kFp16;
    return fp16 == (kScaling == ByteScaling::kFp16) &&
           encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .scales = encoding.scales,
                                      .low = -128,
                                      .high = 127};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding& encoding, const WeightRow& row, int k,
                                   int lane, std::byte* record) {
    const int group = k / kScaleGroup;
    if constexpr (kZeros) {
      const int zero = row.zeros[group];
      if (zero < -128 || zero > 128) return false;
      StoreAs(record + kScales + lane * 4, ScaleAndZero::Join(encoding, row.scales[group], zero));
    } else if constexpr (kScaling == ByteScaling::kFp32) {
      const bool bf16 = encoding.scales == WeightEncoding::Scales::kBf16;
      StoreAs(record + kScales + lane * 4,
              bf16 ? Bf16ToFloat(row.scales[group]) : row.wide_scales[group]);
    } else {
      StoreAs(record + kScales + lane * 2, row.scales[group]);
    }
    for (int i = 0; i < kBlockK; i += 2) {
      std::memcpy(record + Position(lane, i), row.codes + k + i, 2);
    }
    return true;
  }

  static FLOTILLA_INLINE void Decode(const std::byte* record, int lane, float* out) {
    const float d = Scale(record, lane);
    const int zero = Zero(record, lane);
    for (int k = 0; k < kBlockK; ++k) {
      out[k] = d * static_cast<float>(Code(record, lane, k) - zero);
    }
  }

  static FLOTILLA_INLINE uint32_t FourCodes(const std::byte* record, int lane, int k) {
    return LoadAs<uint16_t>(record + Position(lane, k)) |
           uint32_t{LoadAs<uint16_t>(record + Position(lane, k + 2))} << 16;
  }

  // acc = fma(d, float(dot - z sum), acc). Dots of 8 bits may round.
  static FLOTILLA_INLINE float AddBlock(const std::byte* record, int lane, const int16_t* x,
                                        const float* sums, float acc) {
    int32_t dot = 0;
    for (int k = 0; k < kBlockK; ++k) dot += x[k] * Code(record, lane, k);
    return AddDot(record, lane, dot, sums, acc);
  }
  static FLOTILLA_INLINE float AddDot(const std::byte* record, int lane, int32_t dot,
                                      const float* sums, float acc) {
    if constexpr (kZeros) dot -= Zero(record, lane) * static_cast<int32_t>(sums[0]);
    return std::fma(Scale(record, lane), static_cast<float>(dot), acc);
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const std::byte* record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    constexpr int C = DotChains<S>(R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    FLOTILLA_UNROLL
    for (int pair = 0; pair < 16; ++pair) {
      typename S::I weights[H];
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) {
        weights[h] = S::WidenBytes(record + (half + h) * 512 + pair * 32);
      }
      DotStep<S, R, H, C>(dot, pair % C, weights, x, pair * 2);
    }
    if constexpr (kZeros) AddZeros<S, R, H>(record, half, x, dot[0]);
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      const auto d = Scales<S>(record, half + h);
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const int i = r * H + h;
        acc.Set(i, S::Fma(d, S::ToFloat(dots[i]), acc.Get(i)));
      }
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const std::byte* record, float* out) {
    for (int h = 0; h < 2; ++h) {
      const auto d = Scales<S>(record, h);
      auto zero = S::IZero();
      if constexpr (kZeros) zero = ScaleAndZero::Zeros<S>(record + kScales, h);
      const auto weight = [&](typename S::I code) FLOTILLA_INLINE_LAMBDA {
        return S::Mul(d, S::ToFloat(kZeros ? S::ISub(code, zero) : code));
      };
      for (int pair = 0; pair < 16; ++pair) {
        const auto codes = S::WidenBytes(record + h * 512 + pair * 32);
        float* p = out + pair * 2 * kPanelColumns + h * 16;
        S::Store(p, weight(S::template Sar<16>(S::template Shl<16>(codes))));
        S::Store(p + kPanelColumns, weight(S::template Sar<16>(codes)));
      }
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup && kBlockK == kActivationGroup);

  static FLOTILLA_INLINE int Position(int lane, int k) {
    return ((lane / 16 * 16 + k / 2) * 16 + lane % 16) * 2 + k % 2;
  }

  static FLOTILLA_INLINE int Code(const std::byte* record, int lane, int k) {
    return static_cast<int8_t>(record[Position(lane, k)]);
  }

  static FLOTILLA_INLINE float Scale(const std::byte* record, int lane) {
    if constexpr (kZeros) return ScaleAndZero::Scale(record + kScales, lane);
    if constexpr (kScaling == ByteScaling::kFp32) return LoadAs<float>(record + kScales + lane * 4);
    return HalfToFloat(LoadAs<uint16_t>(record + kScales + lane * 2));
  }
  static FLOTILLA_INLINE int Zero(const std::byte* record, int lane) {
    return kZeros ? ScaleAndZero::Zero(record + kScales, lane) : 0;
  }

  // dot[r][h] -= z sum: one step of products of 16 bits. With sum = 128 a + b that is
  // (-128 z) a + (-z) b, whose factors all have 16 bits.
  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddZeros(const std::byte* record, int half, const BlockRows<R>& x,
                                       typename S::I (&dot)[R * H]) {
    typename S::I factors[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      const auto z = ScaleAndZero::Zeros<S>(record + kScales, half + h);
      const auto negative = S::ISub(S::IZero(), z);
      factors[h] = S::IOr(S::template Shl<16>(negative),
                          S::IAnd(S::template Shl<7>(negative), S::ISet1(0xFFFF)));
    }
    FLOTILLA_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto sum = static_cast<int32_t>(x.sum(r));
      const auto pair = S::ISet1((sum >> 7 & 0xFFFF) | (sum & 127) << 16);
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) {
        dot[r * H + h] = S::DotPairs(dot[r * H + h], factors[h], pair);
      }
    }
  }

  template <class S>
  static FLOTILLA_INLINE typename S::F Scales(const std::byte* record, int half) {
    if constexpr (kZeros) {
      return ScaleAndZero::Scales<S>(record + kScales, half);
    } else if constexpr (kScaling == ByteScaling::kFp32) {
      return S::Load(reinterpret_cast<const float*>(record + kScales) + half * 16);
    } else {
      return S::LoadHalf(record + kScales + half * 32);
    }
  }
};

}  // namespace flotilla::kernels
