// What the kinds of 4-bit places in a table of codes share.
//
// A record is the places (NibbleLanes), and then what the scales are made of:
//   kWindows false  scales [kGroups][32 columns], fp16, bf16 or fp32, for each 32 / kGroups of K.
//                   weight = d T[q].
//   kWindows true   the factors f [32 columns][2] int8, of which the second is 0. The window has
//                   d [32] fp16. weight = d f T[q]; the products are exact.
// One instruction gives the 16-bit codes of 32 places on AVX-512, and two on AVX2 give twice as
// many bytes.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/packing/small_codes.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

template <WeightEncoding::Values kValues, WeightEncoding::Scales kScaleType, int kGroups,
          bool kWindows>
struct TableNibbles {
  static_assert(kGroups == 1 || (kGroups == 2 && !kWindows));
  static constexpr int kScales = NibbleLanes::kBytes;  // bytes from a record's begin
  static constexpr bool kWide = kScaleType == WeightEncoding::Scales::kFp32;
  static constexpr int kScaleBytes = kWide ? 4 : 2;
  static constexpr int kGroupBytes = kScaleBytes * kPanelColumns;  // of the scales of a group
  static constexpr int kRecordBytes = kScales + kGroupBytes * kGroups;
  static constexpr int kSuperBytes = kWindows ? 64 : 0;
  using Record = std::conditional_t<kWindows, SuperRecord, const std::byte*>;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding.numbers == WeightEncoding::Numbers::kCodes && encoding.values == kValues &&
           encoding.scales == kScaleType && encoding.scale_group == kBlockK / kGroups &&
           encoding.has_factors == kWindows && !encoding.has_minimums;
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record, std::byte* super = nullptr) {
    if constexpr (kWindows) {
      // The halves of a block share their factor.
      const int8_t* factors = row.factors + k / kFactorGroup;
      if (factors[0] != factors[1]) return false;
      StoreAs(super + lane * 2, row.scales[k / kBlockK]);
      StoreAs(record + kScales + lane * 2, static_cast<uint16_t>(static_cast<uint8_t>(factors[0])));
    } else {
      for (int group = 0; group < kGroups; ++group) {
        std::byte* const scale = record + kScales + group * kGroupBytes + lane * kScaleBytes;
        if constexpr (kWide) {
          StoreAs(scale, row.wide_scales[k / kGroupK + group]);
        } else {
          StoreAs(scale, row.scales[k / kGroupK + group]);
        }
      }
    }
    uint8_t places[kBlockK];
    for (int i = 0; i < kBlockK; ++i) {
      places[i] = kPlaces.of[static_cast<uint8_t>(row.codes[k + i])];
      if (kTable[places[i]] != row.codes[k + i]) return false;
    }
    NibbleLanes::Pack(places, lane, record);
    return true;
  }

  static FLOTILLA_INLINE void Decode(const Record& record, int lane, float* out) {
    for (int k = 0; k < kBlockK; ++k) {
      out[k] = Scale(record, lane, k / kGroupK) * static_cast<float>(Code(record, lane, k));
    }
  }

  // For each group: acc = fma(d, float(dot), acc), d being the product where there are factors.
  static FLOTILLA_INLINE float AddBlock(const Record& record, int lane, const int16_t* x,
                                        const float*, float acc) {
    for (int group = 0; group < kGroups; ++group) {
      int32_t dot = 0;
      for (int k = group * kGroupK; k < (group + 1) * kGroupK; ++k) {
        dot += x[k] * Code(record, lane, k);
      }
      acc = std::fma(Scale(record, lane, group), static_cast<float>(dot), acc);
    }
    return acc;
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const Record& record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    const auto table = S::LoadTable(kTable);
    if constexpr (kGroups == 1) {
      AddGroup<S, R, H, 0, 0, 4>(record, half, table, x, acc);
    } else {
      AddGroup<S, R, H, 0, 0, 2>(record, half, table, x, acc);
      AddGroup<S, R, H, 1, 2, 4>(record, half, table, x, acc);
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const Record& record, float* out) {
    const auto table = S::LoadTable(kTable);
    for (int half = 0; half < 2; ++half) {
      for (int z = 0; z < 4; ++z) {
        const auto scale = Scales<S>(record, half, z * 8 / kGroupK);
        const auto places = S::ILoad(At(record) + half * 256 + z * 64);
        const auto store = [&](typename S::I codes, int n) FLOTILLA_INLINE_LAMBDA {
          float* p = out + (z * 8 + n * 2) * kPanelColumns + half * 16;
          const auto even = S::template Sar<16>(S::template Shl<16>(codes));
          S::Store(p, S::Mul(scale, S::ToFloat(even)));
          S::Store(p + kPanelColumns, S::Mul(scale, S::ToFloat(S::template Sar<16>(codes))));
        };
        store(S::template TableNibble<0>(places, table), 0);
        store(S::template TableNibble<1>(places, table), 1);
        store(S::template TableNibble<2>(places, table), 2);
        store(S::template TableNibble<3>(places, table), 3);
      }
    }
  }

 private:
  static constexpr int kGroupK = kBlockK / kGroups;
  static constexpr const int8_t (&kTable)[16] = ValuesOf(kValues);

  // The first place of each code in the table.
  struct Places {
    uint8_t of[256] = {};
    constexpr Places() {
      for (int place = 15; place >= 0; --place) {
        of[static_cast<uint8_t>(kTable[place])] = static_cast<uint8_t>(place);
      }
    }
  };
  static constexpr Places kPlaces = {};

  static FLOTILLA_INLINE const std::byte* At(const std::byte* record) { return record; }
  static FLOTILLA_INLINE const std::byte* At(const SuperRecord& record) { return record.record; }

  static FLOTILLA_INLINE int Code(const Record& record, int lane, int k) {
    return kTable[NibbleLanes::Code(At(record), lane, k)];
  }

  static FLOTILLA_INLINE float Scale(const Record& record, int lane, int group) {
    if constexpr (kWindows) {
      return HalfToFloat(LoadAs<uint16_t>(record.super + lane * 2)) *
             static_cast<float>(LoadAs<int8_t>(record.record + kScales + lane * 2));
    } else if constexpr (kWide) {
      return LoadAs<float>(record + kScales + group * kGroupBytes + lane * kScaleBytes);
    } else {
      const auto bits = LoadAs<uint16_t>(record + kScales + group * kGroupBytes + lane * 2);
      return kScaleType == WeightEncoding::Scales::kBf16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
    }
  }

  template <class S>
  static FLOTILLA_INLINE typename S::F Scales(const Record& record, int half, int group) {
    if constexpr (kWindows) {
      const auto factors = S::WidenBytes(record.record + kScales + half * 32);
      return S::Mul(S::LoadHalf(record.super + half * 32),
                    S::ToFloat(S::template Sar<16>(S::template Shl<16>(factors))));
    } else {
      const std::byte* at = record + kScales + group * kGroupBytes + half * kGroupBytes / 2;
      if constexpr (kWide) return S::Load(reinterpret_cast<const float*>(at));
      return kScaleType == WeightEncoding::Scales::kBf16 ? S::LoadBf16(at) : S::LoadHalf(at);
    }
  }

  // The sums of the group whose lanes are z from kFirst to kEnd.
  template <class S, int R, int H, int kGroup, int kFirst, int kEnd>
  static FLOTILLA_INLINE void AddGroup(const Record& record, int half,
                                       const typename S::Table& table, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    // The groups do not wait for each other, so they count as outputs.
    constexpr int C = DotChains<S>(kGroups * R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    FLOTILLA_UNROLL
    for (int z = kFirst; z < kEnd; ++z) {
      typename S::I places[H];
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) places[h] = S::ILoad(At(record) + (half + h) * 256 + z * 64);
      Step<S, R, H, C, 0>(dot, places, table, x, z * 8);
      Step<S, R, H, C, 1>(dot, places, table, x, z * 8);
      Step<S, R, H, C, 2>(dot, places, table, x, z * 8);
      Step<S, R, H, C, 3>(dot, places, table, x, z * 8);
    }
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      const auto scale = Scales<S>(record, half + h, kGroup);
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const int i = r * H + h;
        acc.Set(i, S::Fma(scale, S::ToFloat(dots[i]), acc.Get(i)));
      }
    }
  }

  template <class S, int R, int H, int C, int n>
  static FLOTILLA_INLINE void Step(typename S::I (&dot)[C][R * H], const typename S::I (&places)[H],
                                   const typename S::Table& table, const BlockRows<R>& x, int k) {
    typename S::I weights[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) weights[h] = S::template TableNibble<n>(places[h], table);
    DotStep<S, R, H, C>(dot, n % C, weights, x, k + 2 * n);
  }
};

}  // namespace flotilla::kernels
