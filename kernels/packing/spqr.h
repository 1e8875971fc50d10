// Spqr: codes of 3 bits whose scales and zeros are codes of 3 bits, with outliers, for SpQR. 576
// bytes: 4.5 bits per weight, and 8 bytes for where its outliers lie, which take 32 bits each.
//
// A record is the codes q (ThreeBitLanes, less 4), then [2 groups of 16 k][32 columns] bytes: bits
// 0-2 are the code of the scale, bits 3-5 that of the zero, and bits 6-7 of both groups together,
// those of the first one below, are 0 or one more than the place of the column's tile. Last are
// [2 groups][4][8 places] fp16: steps of scales, steps of zeros, zeros of scales, zeros of zeros.
// A place without numbers is free. Columns that nothing has been packed in have no place, and their
// weights are 0.
//
// The columns of a panel lie in two tiles of the file, or, where heads and shards end elsewhere, in
// up to eight.
//
// weight = scale (q - zero), see weight_panel.h.
#pragma once

#include <cmath>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/packing/low_lanes.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

// Whether the encoding is that of SpQR, but for the groups of k.
constexpr bool IsSpqr(const WeightEncoding& encoding) {
  return encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                    .scales = WeightEncoding::Scales::kCoded,
                                    .scale_group = encoding.scale_group,
                                    .low = 0,
                                    .high = 7,
                                    .has_outliers = true,
                                    .groups = encoding.groups,
                                    .order = encoding.order};
}

struct Spqr {
  using Lanes = ThreeBitLanes;
  static constexpr int kRecordBytes = 576;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;
  static constexpr bool kHasOutliers = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return IsSpqr(encoding) && encoding.scale_group == kFactorGroup && encoding.groups == 0;
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record) {
    const CodedScale* const scales = row.coded_scales + k / kFactorGroup;
    const int place = PlaceFor(record, scales);
    if (place < 0) return false;
    for (int group = 0; group < 2; ++group) {
      const int bits = (place + 1) >> 2 * group & 3;
      StoreAs(record + kCodes + group * kPanelColumns + lane,
              static_cast<uint8_t>((scales[group].scale_code & 7) |
                                   (scales[group].zero_code & 7) << 3 | bits << 6));
    }
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
    for (int k = 0; k < kBlockK; ++k) {
      const Scaling scaling = ScalingOf(record, lane, k / kFactorGroup);
      out[k] = scaling.scale * (static_cast<float>(codes[k] - Lanes::kLowest) - scaling.zero);
    }
  }

  // For each group of 16: acc = fma(scale, fma(4 - zero, sum, dot), acc), the dot being that of the
  // codes less 4, which is exact.
  static FLOTILLA_INLINE float AddBlock(const std::byte* record, int lane, const int16_t* x,
                                        const float* sums, float acc) {
    int codes[kBlockK];
    Lanes::Unpack(record, lane, codes);
    for (int group = 0; group < 2; ++group) {
      int32_t dot = 0;
      for (int k = group * kFactorGroup; k < (group + 1) * kFactorGroup; ++k) {
        dot += x[k] * codes[k];
      }
      const Scaling scaling = ScalingOf(record, lane, group);
      const float sum = group == 0 ? sums[1] : sums[0] - sums[1];
      const float rest = static_cast<float>(-Lanes::kLowest) - scaling.zero;
      acc = std::fma(scaling.scale, std::fma(rest, sum, static_cast<float>(dot)), acc);
    }
    return acc;
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const std::byte* record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    typename S::I v[H][Lanes::kLoads];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) Lanes::Load<S>(record, half + h, v[h]);
    Group<S, R, H, 0>(record, half, v, x, acc);
    Group<S, R, H, 1>(record, half, v, x, acc);
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const std::byte* record, float* out) {
    for (int half = 0; half < 2; ++half) {
      typename S::I v[Lanes::kLoads];
      Lanes::Load<S>(record, half, v);
      typename S::F scales[2], zeros[2];
      Scalings<S>(record, half, 0, scales[0], zeros[0]);
      Scalings<S>(record, half, 1, scales[1], zeros[1]);
      DecodeFrom<S, 0>(v, scales, zeros, out + half * 16);
    }
  }

 private:
  static_assert(kBlockK == 2 * kFactorGroup && kSumSpan == kFactorGroup);
  static constexpr int kCodes = Lanes::kBytes;  // bytes from a record's begin
  static constexpr int kTiles = kCodes + 2 * kPanelColumns;
  static constexpr int kPlaces = 8;
  static constexpr int kGroupBytes = 4 * kPlaces * 2;  // of the numbers of a group
  static_assert(kTiles + 2 * kGroupBytes == kRecordBytes);

  struct Scaling {
    float scale, zero;
  };
  // What a tile has for a group.
  struct Numbers {
    uint16_t numbers[4];
    bool operator==(const Numbers&) const = default;
  };

  // Bytes from a record's begin.
  static FLOTILLA_INLINE int NumberAt(int group, int number, int place) {
    return kTiles + group * kGroupBytes + (number * kPlaces + place) * 2;
  }

  static FLOTILLA_INLINE Numbers NumbersAt(const std::byte* record, int group, int place) {
    Numbers all;
    for (int i = 0; i < 4; ++i) {
      all.numbers[i] = LoadAs<uint16_t>(record + NumberAt(group, i, place));
    }
    return all;
  }

  // The place that has the numbers of two groups, perhaps a free one that gets them; -1: none is
  // left.
  static FLOTILLA_INLINE int PlaceFor(std::byte* record, const CodedScale* scales) {
    constexpr uint16_t kMinusOne = 0xBC00;
    Numbers wanted[2];
    for (int group = 0; group < 2; ++group) {
      const CodedScale& from = scales[group];
      wanted[group] = {from.scale_step, from.zero_step, from.scale_zero, from.zero_zero};
    }
    // If all are 0 so are the weights, whatever is subtracted from a code.
    if (wanted[0] == Numbers{} && wanted[1] == Numbers{}) wanted[0].numbers[3] = kMinusOne;
    for (int place = 0; place < kPlaces; ++place) {
      const Numbers first = NumbersAt(record, 0, place), second = NumbersAt(record, 1, place);
      if (first == wanted[0] && second == wanted[1]) return place;
      if (first != Numbers{} || second != Numbers{}) continue;
      for (int group = 0; group < 2; ++group) {
        for (int i = 0; i < 4; ++i) {
          StoreAs(record + NumberAt(group, i, place), wanted[group].numbers[i]);
        }
      }
      return place;
    }
    return -1;
  }

  static FLOTILLA_INLINE Scaling ScalingOf(const std::byte* record, int lane, int group) {
    const auto first = LoadAs<uint8_t>(record + kCodes + lane);
    const auto second = LoadAs<uint8_t>(record + kCodes + kPanelColumns + lane);
    const int place = (first >> 6 | second >> 6 << 2) - 1;
    if (place < 0) return {0, 0};
    const int codes = group == 0 ? first : second;
    const auto number = [&](int i) {
      return HalfToFloat(LoadAs<uint16_t>(record + NumberAt(group, i, place)));
    };
    return {number(0) * (static_cast<float>(codes & 7) - number(2)),
            number(1) * (static_cast<float>(codes >> 3 & 7) - number(3))};
  }

  // The scales and the zeros of 16 columns.
  template <class S>
  static FLOTILLA_INLINE void Scalings(const std::byte* record, int half, int group,
                                       typename S::F& scale, typename S::F& zero) {
    const auto first = S::ILoadUint8(record + kCodes + half * 16);
    const auto second = S::ILoadUint8(record + kCodes + kPanelColumns + half * 16);
    const auto codes = group == 0 ? first : second;
    const auto high = S::template Shl<2>(S::template Shr<6>(second));
    const auto places = S::IOr(S::template Shr<6>(first), high);
    const auto low = S::IAnd(S::ISub(places, S::ISet1(1)), S::ISet1(kPlaces - 1));
    const auto upper = S::IOr(low, S::ISet1(kPlaces));
    const std::byte* const numbers = record + kTiles + group * kGroupBytes;
    const auto steps = S::HalfTable(numbers), zeros = S::HalfTable(numbers + kGroupBytes / 2);
    const auto scale_codes = S::ToFloat(S::IAnd(codes, S::ISet1(7)));
    const auto zero_codes = S::ToFloat(S::IAnd(S::template Shr<3>(codes), S::ISet1(7)));
    const auto packed = S::IGt(places, S::IZero());
    scale = S::Select(
        packed, S::Mul(S::FloatEntry(low, steps), S::Sub(scale_codes, S::FloatEntry(low, zeros))),
        S::Zero());
    zero = S::Select(
        packed,
        S::Mul(S::FloatEntry(upper, steps), S::Sub(zero_codes, S::FloatEntry(upper, zeros))),
        S::Zero());
  }

  template <class S, int R, int H, int group>
  static FLOTILLA_INLINE void Group(const std::byte* record, int half,
                                    const typename S::I (&v)[H][Lanes::kLoads],
                                    const BlockRows<R>& x, TileSums<S, R * H>& acc) {
    // The groups do not wait for each other, so they count as outputs.
    constexpr int C = DotChains<S>(2 * R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    DotCodes<Lanes, S, R, H, C, group * 8, group * 8 + 8>(dot, v, x);
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      typename S::F scale, zero;
      Scalings<S>(record, half + h, group, scale, zero);
      const auto rest = S::Sub(S::Set1(static_cast<float>(-Lanes::kLowest)), zero);
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const int i = r * H + h;
        const auto exact = S::Fma(rest, S::Set1(x.half_sum(r, group)), S::ToFloat(dots[i]));
        acc.Set(i, S::Fma(scale, exact, acc.Get(i)));
      }
    }
  }

  template <class S, int n>
  static FLOTILLA_INLINE void DecodeFrom(const typename S::I (&v)[Lanes::kLoads],
                                         const typename S::F (&scales)[2],
                                         const typename S::F (&zeros)[2], float* out) {
    const auto codes = Lanes::Operand<S, n>(v);
    const auto store = [&](int j, typename S::I less) FLOTILLA_INLINE_LAMBDA {
      const auto code = S::ToFloat(S::ISub(less, S::ISet1(Lanes::kLowest)));
      S::Store(out + (2 * n + j) * kPanelColumns,
               S::Mul(scales[n / 8], S::Sub(code, zeros[n / 8])));
    };
    store(0, S::template Sar<16>(S::template Shl<16>(codes)));
    store(1, S::template Sar<16>(codes));
    if constexpr (n + 1 < 16) DecodeFrom<S, n + 1>(v, scales, zeros, out);
  }
};

}  // namespace flotilla::kernels
