// Bytes: codes of 8 bits with a scale for each 32. 1,088 bytes: 8.5 bits per weight.
//
// A record is [2 halves][16 pairs][16 columns][2 j] int8, k = 2 pair + j, then d [32] fp16.
// weight = d q.
#pragma once

#include <cmath>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct Bytes {
  static constexpr int kRecordBytes = 1088;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding ==
           WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes, .low = -128, .high = 127};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record) {
    StoreAs(record + kScales + lane * 2, row.scales[k / kScaleGroup]);
    for (int i = 0; i < kBlockK; i += 2) {
      std::memcpy(record + Position(lane, i), row.codes + k + i, 2);
    }
    return true;
  }

  static FLOTILLA_INLINE void Decode(const std::byte* record, int lane, float* out) {
    const float d = HalfToFloat(LoadAs<uint16_t>(record + kScales + lane * 2));
    for (int k = 0; k < kBlockK; ++k) out[k] = d * static_cast<float>(Code(record, lane, k));
  }

  // acc = fma(d, float(dot), acc).
  static FLOTILLA_INLINE float AddBlock(const std::byte* record, int lane, const int16_t* x,
                                        const float*, float acc) {
    int32_t dot = 0;
    for (int k = 0; k < kBlockK; ++k) dot += x[k] * Code(record, lane, k);
    const float d = HalfToFloat(LoadAs<uint16_t>(record + kScales + lane * 2));
    return std::fma(d, static_cast<float>(dot), acc);
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
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      const auto d = S::LoadHalf(record + kScales + (half + h) * 32);
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
      const auto d = S::LoadHalf(record + kScales + h * 32);
      for (int pair = 0; pair < 16; ++pair) {
        const auto codes = S::WidenBytes(record + h * 512 + pair * 32);
        const auto even = S::template Sar<16>(S::template Shl<16>(codes));
        float* p = out + pair * 2 * kPanelColumns + h * 16;
        S::Store(p, S::Mul(d, S::ToFloat(even)));
        S::Store(p + kPanelColumns, S::Mul(d, S::ToFloat(S::template Sar<16>(codes))));
      }
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup);
  static constexpr int kScales = 1024;  // bytes from a record's begin

  static FLOTILLA_INLINE int Position(int lane, int k) {
    return ((lane / 16 * 16 + k / 2) * 16 + lane % 16) * 2 + k % 2;
  }

  static FLOTILLA_INLINE int Code(const std::byte* record, int lane, int k) {
    return static_cast<int8_t>(record[Position(lane, k)]);
  }
};

}  // namespace flotilla::kernels
