// Nf4: places in the table of NF4 with an fp32 scale for each 32. 640 bytes: 5 bits per weight.
//
// A record is [2 halves][4 z][16 columns] words of 32 bits, in which nibble n is the place of
// k = 8 z + n, then d [32] fp32. weight = d T[q].
#pragma once

#include "kernels/packing/kind.h"

namespace flotilla::kernels {

struct Nf4 {
  static constexpr int kRecordBytes = 640;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = false;
  static constexpr bool kStreams = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .values = WeightEncoding::Values::kNf4,
                                      .scales = WeightEncoding::Scales::kFp32};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record) {
    StoreAs(record + kScales + lane * 4, row.wide_scales[k / kScaleGroup]);
    for (int z = 0; z < 4; ++z) {
      uint32_t word = 0;
      for (int n = 0; n < 8; ++n) {
        word |= static_cast<uint32_t>(row.codes[k + z * 8 + n] & 15) << n * 4;
      }
      StoreAs(record + Word(lane, z), word);
    }
    return true;
  }

  static FLOTILLA_INLINE void Decode(const std::byte* record, int lane, float* out) {
    const auto d = LoadAs<float>(record + kScales + lane * 4);
    for (int k = 0; k < kBlockK; ++k) {
      out[k] = d * kNf4Values[LoadAs<uint32_t>(record + Word(lane, k / 8)) >> k % 8 * 4 & 15];
    }
  }

  template <class S, int H, class Add>
  static FLOTILLA_INLINE void ForEachK(const std::byte* record, int half, const Add& add) {
    const auto table = S::LoadFloatTable(kNf4Values);
    typename S::F d[H], weights[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      d[h] = S::Load(reinterpret_cast<const float*>(record + kScales) + (half + h) * 16);
    }
    for (int z = 0; z < 4; ++z) {
      typename S::I places[H];
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) places[h] = S::ILoad(record + Word((half + h) * 16, z));
      for (int n = 0; n < 8; ++n) {
        FLOTILLA_UNROLL
        for (int h = 0; h < H; ++h) {
          weights[h] = S::Mul(d[h], S::FloatEntry(places[h], table));
          places[h] = S::template Shr<4>(places[h]);
        }
        add(z * 8 + n, weights);
      }
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const std::byte* record, float* out) {
    for (int half = 0; half < 2; ++half) {
      ForEachK<S, 1>(record, half,
                     [&](int k, const typename S::F(&weights)[1]) FLOTILLA_INLINE_LAMBDA {
                       S::Store(out + k * kPanelColumns + half * 16, weights[0]);
                     });
    }
  }

 private:
  static_assert(kBlockK == kScaleGroup);
  static constexpr int kScales = 512;  // bytes from a record's begin

  static FLOTILLA_INLINE int Word(int lane, int z) {
    return ((lane / 16 * 4 + z) * 16 + lane % 16) * 4;
  }
};

}  // namespace flotilla::kernels
