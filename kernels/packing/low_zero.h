// What the kinds of codes of 2 and 3 bits with a scale and a zero for each 32 share.
//
// A record is the codes q (Lanes of low_lanes.h, from their least code on), then ScaleAndZero [32]:
// d and a zero z, less as much. weight = d (q - z).
#pragma once

#include <cmath>

#include "kernels/packing/kind.h"
#include "kernels/packing/low_lanes.h"
#include "kernels/packing/scale_and_zero.h"

namespace flotilla::kernels {

template <class Lanes, int kBits>
struct LowZero {
  static constexpr int kScales = Lanes::kBytes;  // bytes from a record's begin
  static constexpr int kRecordBytes = kScales + kPanelColumns * 4;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding.scales != WeightEncoding::Scales::kFp32 &&
           encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .scales = encoding.scales,
                                      .low = 0,
                                      .high = (1 << kBits) - 1,
                                      .has_zeros = true};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding& encoding, const WeightRow& row, int k,
                                   int lane, std::byte* record) {
    const int zero = row.zeros[k / kScaleGroup];
    if (zero < 0 || zero > 1 << kBits) return false;
    StoreAs(record + kScales + lane * 4,
            ScaleAndZero::Join(encoding, row.scales[k / kScaleGroup], zero + Lanes::kLowest));
    int8_t codes[kBlockK];
    for (int i = 0; i < kBlockK; ++i) {
      codes[i] = static_cast<int8_t>(row.codes[k + i] + Lanes::kLowest);
    }
    Lanes::Pack(codes, lane, record);
    return true;
  }

  static FLOTILLA_INLINE void Decode(const std::byte* record, int lane, float* out) {
    int codes[kBlockK];
    Lanes::Unpack(record, lane, codes);
    const float d = ScaleAndZero::Scale(record + kScales, lane);
    const int zero = ScaleAndZero::Zero(record + kScales, lane);
    for (int k = 0; k < kBlockK; ++k) out[k] = d * static_cast<float>(codes[k] - zero);
  }

  // acc = fma(d, dot - z sum, acc). The difference is below 2^24, which is exact in fp32.
  static FLOTILLA_INLINE float AddBlock(const std::byte* record, int lane, const int16_t* x,
                                        const float* sums, float acc) {
    int codes[kBlockK];
    Lanes::Unpack(record, lane, codes);
    int32_t dot = 0;
    for (int k = 0; k < kBlockK; ++k) dot += x[k] * codes[k];
    const auto zero = static_cast<float>(ScaleAndZero::Zero(record + kScales, lane));
    return std::fma(ScaleAndZero::Scale(record + kScales, lane),
                    std::fma(-zero, sums[0], static_cast<float>(dot)), acc);
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const std::byte* record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    constexpr int C = DotChains<S>(R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    typename S::I v[H][Lanes::kLoads];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) Lanes::template Load<S>(record, half + h, v[h]);
    DotCodes<Lanes, S, R, H, C, 0, 16>(dot, v, x);
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      const auto d = ScaleAndZero::Scales<S>(record + kScales, half + h);
      const auto zero = ScaleAndZero::Zeros<S>(record + kScales, half + h);
      const auto negative = S::ToFloat(S::ISub(S::IZero(), zero));
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const int i = r * H + h;
        const auto exact = S::Fma(negative, S::Set1(x.sum(r)), S::ToFloat(dots[i]));
        acc.Set(i, S::Fma(d, exact, acc.Get(i)));
      }
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const std::byte* record, float* out) {
    for (int half = 0; half < 2; ++half) {
      typename S::I v[Lanes::kLoads];
      Lanes::template Load<S>(record, half, v);
      const auto d = ScaleAndZero::Scales<S>(record + kScales, half);
      const auto zero = ScaleAndZero::Zeros<S>(record + kScales, half);
      DecodeFrom<S, 0>(v, d, zero, out + half * 16);
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup && kBlockK == kActivationGroup);

  template <class S, int n>
  static FLOTILLA_INLINE void DecodeFrom(const typename S::I (&v)[Lanes::kLoads], typename S::F d,
                                         typename S::I zero, float* out) {
    const auto codes = Lanes::template Operand<S, n>(v);
    const auto store = [&](int j, typename S::I code) FLOTILLA_INLINE_LAMBDA {
      S::Store(out + (2 * n + j) * kPanelColumns, S::Mul(d, S::ToFloat(S::ISub(code, zero))));
    };
    store(0, S::template Sar<16>(S::template Shl<16>(codes)));
    store(1, S::template Sar<16>(codes));
    if constexpr (n + 1 < 16) DecodeFrom<S, n + 1>(v, d, zero, out);
  }
};

}  // namespace flotilla::kernels
