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

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    const auto* scales = reinterpret_cast<const float*>(record.super);
    const auto first = S::Load(scales), second = S::Load(scales + 16);
    for (int k = 0; k < kBlockK; ++k, out += kPanelColumns) {
      // The sign stays above, and one bit of the exponent is 0.
      const auto bytes = S::WidenBytes(record.record + k * kPanelColumns);
      const auto halves = S::IAnd(S::template Shl16<7>(bytes), S::ISet1(kFp16Bits));
      S::Store(out, S::Mul(first, S::template HalvesToFloat<0>(halves)));
      S::Store(out + 16, S::Mul(second, S::template HalvesToFloat<1>(halves)));
    }
  }

 private:
  static constexpr float kUnit = 256.0f;
  static constexpr int32_t kFp16Bits = static_cast<int32_t>(0xBF80BF80);
};

}  // namespace flotilla::kernels
