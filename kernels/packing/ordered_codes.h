// What the kinds of codes whose groups have their k anywhere share.
//
// A record is the codes q, from 0 on, and then [32 k] the number of the group of each k, plus one,
// in 16 bits. Codes of 4 bits are [2 halves][4 z][16 columns] words of 32 bits, in which nibble n
// is that of k = 8 z + n; codes of 8 bits are [32 k][32 columns]. The table of a panel has
// ScaleAndZero [32] of each group, and before them zeros, for k that no weight has been packed at.
// weight = d (q - z).
//
// K keeps its order, because the sums of the recipe fp32 follow it. So there is no product with
// integers, whose sums would need the k of a group together.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/packing/kind.h"
#include "kernels/packing/scale_and_zero.h"

namespace flotilla::kernels {

template <int kBits>
struct OrderedCodes {
  static constexpr int kGroups = kPanelColumns * kBlockK * kBits / 8;  // bytes from the begin
  static constexpr int kRecordBytes = kGroups + kBlockK * 2;
  static constexpr int kSuperBytes = kPanelColumns * 4;
  static constexpr bool kHasTable = true;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = false;
  static constexpr bool kStreams = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding.scales != WeightEncoding::Scales::kFp32 && encoding.groups > 0 &&
           encoding.groups <= std::numeric_limits<uint16_t>::max() &&
           encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .scales = encoding.scales,
                                      .scale_group = 1,
                                      .low = kLowest,
                                      .high = kLowest + (1 << kBits) - 1,
                                      .has_zeros = true,
                                      .groups = encoding.groups,
                                      .order = encoding.order};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding& encoding, const WeightRow& row, int k,
                                   int lane, std::byte* record, std::byte* super) {
    uint32_t words[4] = {};
    for (int i = 0; i < kBlockK; ++i) {
      const int zero = row.zeros[k + i] - kLowest, group = row.groups[k + i];
      if (zero < 0 || zero > 1 << kBits || group >= encoding.groups) return false;
      StoreAs(super + (1 + group) * kSuperBytes + lane * 4,
              ScaleAndZero::Join(encoding, row.scales[k + i], zero));
      StoreAs(record + kGroups + i * 2, static_cast<uint16_t>(1 + group));
      const int code = row.codes[k + i] - kLowest;
      if constexpr (kBits == 8) {
        StoreAs(record + i * kPanelColumns + lane, static_cast<uint8_t>(code));
      } else {
        words[i / 8] |= static_cast<uint32_t>(code & 15) << i % 8 * 4;
      }
    }
    for (int z = 0; kBits == 4 && z < 4; ++z) StoreAs(record + Word(lane, z), words[z]);
    return true;
  }

  static FLOTILLA_INLINE void Decode(const SuperRecord& record, int lane, float* out) {
    for (int k = 0; k < kBlockK; ++k) {
      const std::byte* const words = GroupOf(record, k);
      const int code = kBits == 8
                           ? LoadAs<uint8_t>(record.record + k * kPanelColumns + lane)
                           : LoadAs<uint32_t>(record.record + Word(lane, k / 8)) >> k % 8 * 4 & 15;
      out[k] = ScaleAndZero::Scale(words, lane) *
               static_cast<float>(code - ScaleAndZero::Zero(words, lane));
    }
  }

  template <class S, int H, class Add>
  static FLOTILLA_INLINE void ForEachK(const SuperRecord& record, int half, const Add& add) {
    typename S::I places[H];
    typename S::F weights[H];
    for (int k = 0; k < kBlockK; ++k) {
      const std::byte* const words = GroupOf(record, k);
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) {
        const auto d = ScaleAndZero::Scales<S>(words, half + h);
        const auto zero = ScaleAndZero::Zeros<S>(words, half + h);
        if constexpr (kBits == 8) {
          const auto code = S::LoadUint8(record.record + k * kPanelColumns + (half + h) * 16);
          weights[h] = S::Mul(d, S::Sub(code, S::ToFloat(zero)));
        } else {
          places[h] = k % 8 == 0 ? S::ILoad(record.record + Word((half + h) * 16, k / 8))
                                 : S::template Shr<4>(places[h]);
          const auto code = S::IAnd(places[h], S::ISet1(15));
          weights[h] = S::Mul(d, S::ToFloat(S::ISub(code, zero)));
        }
      }
      add(k, weights);
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    for (int half = 0; half < 2; ++half) {
      ForEachK<S, 1>(record, half,
                     [&](int k, const typename S::F(&weights)[1]) FLOTILLA_INLINE_LAMBDA {
                       S::Store(out + k * kPanelColumns + half * 16, weights[0]);
                     });
    }
  }

 private:
  static constexpr int kLowest = kBits == 8 ? -128 : 0;  // of the encoding's codes

  // The words of the group of k.
  static FLOTILLA_INLINE const std::byte* GroupOf(const SuperRecord& record, int k) {
    return record.super + LoadAs<uint16_t>(record.record + kGroups + k * 2) * kSuperBytes;
  }
  static FLOTILLA_INLINE int Word(int lane, int z) {
    return ((lane / 16 * 4 + z) * 16 + lane % 16) * 4;
  }
};

}  // namespace flotilla::kernels
