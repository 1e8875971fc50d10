// BytesInt8: codes of 8 bits that are multiplied by activations of 8 bits (W8A8 under recipe fast).
//
// A record is [2 halves][8 quads][16 columns][4 j] bytes, k = 4 quad + j, each a code plus 128. A
// panel has, before its records and per column, what all of its weights have in common: d [32] fp32
// and z [32] int32. weight = d (q - z). 1,024 bytes a record: 8 bits per weight, and 64 per row.
//
// Sums of bytes from 0 to 255 times int8 are what vpdpbusd makes; the 128 and the zero go out of
// them with the sum of the row's activations, once for each split.
#pragma once

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct BytesInt8 {
  static constexpr int kRecordBytes = 1024;
  static constexpr int kSuperBytes = kPanelColumns * 8;
  static constexpr bool kHasTable = true;  // of the whole row
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = false;
  static constexpr bool kHasInt8Product = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding.activations.kind != ActivationScheme::Kind::kNone &&
           encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .scales = encoding.scales,
                                      .low = -128,
                                      .high = 127,
                                      .has_zeros = encoding.has_zeros,
                                      .activations = encoding.activations};
  }

  // False as well if a row has a second scale or zero.
  static FLOTILLA_INLINE bool Pack(const WeightEncoding& encoding, const WeightRow& row, int k,
                                   int lane, std::byte* record, std::byte* super) {
    const int group = k / kScaleGroup;
    float scale;
    switch (encoding.scales) {
      case WeightEncoding::Scales::kFp16:
        scale = HalfToFloat(row.scales[group]);
        break;
      case WeightEncoding::Scales::kBf16:
        scale = Bf16ToFloat(row.scales[group]);
        break;
      default:
        scale = row.wide_scales[group];
    }
    const int32_t zero = encoding.has_zeros ? row.zeros[group] : 0;
    if (zero < -128 || zero > 128) return false;
    const float known_scale = LoadAs<float>(super + lane * 4);
    const auto known_zero = LoadAs<int32_t>(super + kZeros + lane * 4);
    if (known_scale != 0 && (known_scale != scale || known_zero != zero)) return false;
    StoreAs(super + lane * 4, scale);
    StoreAs(super + kZeros + lane * 4, zero);
    for (int i = 0; i < kBlockK; ++i) {
      record[Position(lane, i)] = static_cast<std::byte>(row.codes[k + i] + 128);
    }
    return true;
  }

  static FLOTILLA_INLINE float Scale(const SuperRecord& record, int lane) {
    return LoadAs<float>(record.super + lane * 4);
  }
  static FLOTILLA_INLINE int Integer(const SuperRecord& record, int lane, int k) {
    return static_cast<int>(record.record[Position(lane, k)]) - 128 -
           LoadAs<int32_t>(record.super + kZeros + lane * 4);
  }

  static FLOTILLA_INLINE void Decode(const SuperRecord& record, int lane, float* out) {
    const float d = Scale(record, lane);
    for (int k = 0; k < kBlockK; ++k) out[k] = d * static_cast<float>(Integer(record, lane, k));
  }

  template <class S>
  static FLOTILLA_INLINE typename S::F Scales(const std::byte* super, int half) {
    return S::Load(reinterpret_cast<const float*>(super) + half * 16);
  }
  template <class S>
  static FLOTILLA_INLINE typename S::I Zeros(const std::byte* super, int half) {
    return S::IAdd(S::ILoad(super + kZeros + half * 64), S::ISet1(128));
  }

  template <class S, int R, int H, int C>
  static FLOTILLA_INLINE void AddQuads(const std::byte* record, int half,
                                       const int8_t* const (&x)[R], int block,
                                       typename S::I (&dot)[C][R * H]) {
    FLOTILLA_UNROLL
    for (int quad = 0; quad < kBlockK / 4; ++quad) {
      typename S::Quads weights[H];
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) {
        weights[h] = S::LoadQuads(record + (half + h) * 512 + quad * 64);
      }
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const auto four = S::BroadcastQuad(x[r] + block * kBlockK + quad * 4);
        FLOTILLA_UNROLL
        for (int h = 0; h < H; ++h) {
          auto& sum = dot[quad % C][r * H + h];
          sum = S::DotQuads(sum, weights[h], four);
        }
      }
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    for (int half = 0; half < 2; ++half) {
      const auto d = Scales<S>(record.super, half);
      const auto zero = Zeros<S>(record.super, half);
      for (int quad = 0; quad < kBlockK / 4; ++quad) {
        auto codes = S::ILoad(record.record + half * 512 + quad * 64);
        for (int j = 0; j < 4; ++j) {
          const auto code = S::IAnd(codes, S::ISet1(255));
          S::Store(out + (quad * 4 + j) * kPanelColumns + half * 16,
                   S::Mul(d, S::ToFloat(S::ISub(code, zero))));
          codes = S::template Shr<8>(codes);
        }
      }
    }
  }

 private:
  static constexpr int kZeros = kPanelColumns * 4;  // bytes from the begin of what columns have

  static FLOTILLA_INLINE int Position(int lane, int k) {
    return ((lane / 16 * 8 + k / 4) * 16 + lane % 16) * 4 + k % 4;
  }
};

}  // namespace flotilla::kernels
