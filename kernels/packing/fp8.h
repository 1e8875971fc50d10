// Fp8: FP8 (E4M3) with an fp32 scale for each 128. 1,024 bytes, and 128 for a window: 8.25 bits per
// weight.
//
// A record is [32 k][32 columns] bytes as the file has them, and a window has d [32] fp32, which
// is 256 times the scale: the bits of E4M3 at their place in fp16 are the value / 256, subnormals
// included. weight = d (value / 256).
#pragma once

#include <cmath>

#include "kernels/packing/kind.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct Fp8 {
  static constexpr int kRecordBytes = kBlockK * kPanelColumns;
  static constexpr int kSuperBytes = kPanelColumns * 4;
  static constexpr int kSuperSpan = kLongGroup;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = false;
  static constexpr bool kStreams = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .values = WeightEncoding::Values::kFp8,
                                      .scales = WeightEncoding::Scales::kFp32,
                                      .scale_group = kLongGroup};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record, std::byte* super) {
    const float d = row.wide_scales[k / kLongGroup] * kUnit;
    if (!std::isfinite(d)) return false;
    StoreAs(super + lane * 4, d);
    for (int i = 0; i < kBlockK; ++i) StoreAs(record + i * kPanelColumns + lane, row.codes[k + i]);
    return true;
  }

  static FLOTILLA_INLINE void Decode(const SuperRecord& record, int lane, float* out) {
    const auto d = LoadAs<float>(record.super + lane * 4);
    for (int k = 0; k < kBlockK; ++k) {
      out[k] = d * (Fp8ToFloat(LoadAs<uint8_t>(record.record + k * kPanelColumns + lane)) / kUnit);
    }
  }

  template <class S, int H, class Add>
  static FLOTILLA_INLINE void ForEachK(const SuperRecord& record, int half, const Add& add) {
    typename S::F d[H], weights[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      d[h] = S::Load(reinterpret_cast<const float*>(record.super) + (half + h) * 16);
    }
    for (int k = 0; k < kBlockK; ++k) {
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) {
        const std::byte* const at = record.record + k * kPanelColumns + (half + h) * 16;
        weights[h] = S::Mul(d[h], S::LoadFp8(at));
      }
      add(k, weights);
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    ForEachK<S, 2>(record, 0, [&](int k, const typename S::F(&weights)[2]) FLOTILLA_INLINE_LAMBDA {
      S::Store(out + k * kPanelColumns, weights[0]);
      S::Store(out + k * kPanelColumns + 16, weights[1]);
    });
  }

 private:
  static constexpr float kUnit = 256.0f;
};

}  // namespace flotilla::kernels
