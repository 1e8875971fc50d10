// Nibbles: codes of 4 bits with a scale and a minimum for each 32. 640 bytes: 5 bits per weight.
//
// A record is [2 halves][4 z][16 columns][2 j] 16-bit lanes, then d [32] fp16, m [32] fp16. Nibble
// n of a lane (bits 4n..4n+3) is the code q of k = 8 z + 2 n + j, so one 64-byte load gives four
// operands of 16 columns x 2 k by shift and mask. weight = d q + m. Codes from -8 on without
// minimums are stored with q = code + 8 and m = -8 d, exact in fp16.
//
// Scales are fp16, because single-row decode is bound by the bytes read: they cost 1 bit per
// weight, and fp32 would cost 2. One instruction converts them to fp32 exactly.
#pragma once

#include <cmath>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct Nibbles {
  static constexpr int kRecordBytes = 640;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding.numbers == WeightEncoding::Numbers::kCodes && !encoding.has_factors &&
           encoding.low == (encoding.has_minimums ? 0 : -8) && encoding.high == encoding.low + 15;
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding& encoding, const WeightRow& row, int k,
                                   int lane, std::byte* record) {
    const uint16_t d = row.scales[k / kScaleGroup];
    uint16_t m = row.minimums[k / kScaleGroup];
    if (!encoding.has_minimums && !MinusEightTimes(d, &m)) return false;
    StoreAs(record + kScales + lane * 2, d);
    StoreAs(record + kMinimums + lane * 2, m);
    uint8_t codes[kBlockK];
    for (int i = 0; i < kBlockK; ++i) {
      codes[i] = static_cast<uint8_t>(row.codes[k + i] - encoding.low);
    }
    constexpr uint64_t kEven = 0x000F000F000F000Fu;
    for (int z = 0; z < 4; ++z) {
      uint64_t eight;
      std::memcpy(&eight, codes + z * 8, sizeof eight);
      StoreAs(record + Lane(lane, z * 8) * 2, Gather4(eight & kEven) | Gather4((eight >> 8) & kEven)
                                                                           << 16);
    }
    return true;
  }

  static FLOTILLA_INLINE void Decode(const std::byte* record, int lane, float* out) {
    const float d = HalfToFloat(LoadAs<uint16_t>(record + kScales + lane * 2));
    const float m = HalfToFloat(LoadAs<uint16_t>(record + kMinimums + lane * 2));
    // The product is exact.
    for (int k = 0; k < kBlockK; ++k) out[k] = d * static_cast<float>(Code(record, lane, k)) + m;
  }

  // acc = fma(d, float(dot), acc), then acc = fma(m, sum, acc).
  static FLOTILLA_INLINE float AddBlock(const std::byte* record, int lane, const int16_t* x,
                                        const float* sums, float acc) {
    int32_t dot = 0;
    for (int k = 0; k < kBlockK; ++k) dot += x[k] * Code(record, lane, k);
    const float d = HalfToFloat(LoadAs<uint16_t>(record + kScales + lane * 2));
    const float m = HalfToFloat(LoadAs<uint16_t>(record + kMinimums + lane * 2));
    return std::fma(m, sums[0], std::fma(d, static_cast<float>(dot), acc));
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const std::byte* record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    constexpr int C = DotChains<S>(R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    FLOTILLA_UNROLL
    for (int z = 0; z < 4; ++z) {
      typename S::I packed[H];
      FLOTILLA_UNROLL
      for (int h = 0; h < H; ++h) packed[h] = S::ILoad(record + (half + h) * 256 + z * 64);
      NibbleStep<S, R, H, C, 0>(dot, packed, x, z * 8);
      NibbleStep<S, R, H, C, 1>(dot, packed, x, z * 8);
      NibbleStep<S, R, H, C, 2>(dot, packed, x, z * 8);
      NibbleStep<S, R, H, C, 3>(dot, packed, x, z * 8);
    }
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      const auto d = S::LoadHalf(record + kScales + (half + h) * 32);
      const auto m = S::LoadHalf(record + kMinimums + (half + h) * 32);
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const int i = r * H + h;
        const auto sum = S::Fma(d, S::ToFloat(dots[i]), acc.Get(i));
        acc.Set(i, S::Fma(m, S::Set1(x.sum(r)), sum));
      }
    }
  }

  // d q is exact in fp32; adding m rounds once, as fma does.
  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const std::byte* record, float* out) {
    for (int h = 0; h < 2; ++h) {
      const auto d = S::LoadHalf(record + kScales + h * 32);
      const auto m = S::LoadHalf(record + kMinimums + h * 32);
      for (int z = 0; z < 4; ++z) {
        const auto packed = S::ILoad(record + h * 256 + z * 64);
        const auto store = [&](typename S::I codes, int n) FLOTILLA_INLINE_LAMBDA {
          float* p = out + (z * 8 + n * 2) * kPanelColumns + h * 16;
          const auto even = S::IAnd(codes, S::ISet1(0xFFFF));
          S::Store(p, S::Fma(d, S::ToFloat(even), m));
          S::Store(p + kPanelColumns, S::Fma(d, S::ToFloat(S::template Shr<16>(codes)), m));
        };
        store(S::template Nibble<0>(packed), 0);
        store(S::template Nibble<1>(packed), 1);
        store(S::template Nibble<2>(packed), 2);
        store(S::template Nibble<3>(packed), 3);
      }
    }
  }

 private:
  static_assert(kBlockK == kActivationGroup && kBlockK == kScaleGroup);
  static constexpr int kScales = 512, kMinimums = 576;  // bytes from a record's begin

  // The 16-bit lane that has the code of k.
  static FLOTILLA_INLINE int Lane(int lane, int k) {
    return (lane / 16 * 4 + k / 8) * 32 + lane % 16 * 2 + k % 2;
  }

  static FLOTILLA_INLINE int Code(const std::byte* record, int lane, int k) {
    return LoadAs<uint16_t>(record + Lane(lane, k) * 2) >> (k % 8 / 2 * 4) & 0xF;
  }

  // Returns the four nibbles in bits 0-3, 16-19, 32-35, 48-51 side by side in bits 0-15.
  static FLOTILLA_INLINE uint32_t Gather4(uint64_t x) {
    x = (x | x >> 12) & 0x000000FF000000FFu;
    return static_cast<uint32_t>(x | x >> 24) & 0xFFFFu;
  }

  // -8 d as fp16: exponent + 3 and the sign flipped; exact for every d whose result
  // is finite. Returns false otherwise.
  static FLOTILLA_INLINE bool MinusEightTimes(uint16_t d, uint16_t* out) {
    const uint16_t sign = (d & 0x8000u) ^ 0x8000u;
    uint32_t exponent = (d >> 10) & 31u;
    uint32_t mantissa = d & 0x3FFu;
    if (exponent >= 28) return false;
    if (exponent == 0) {
      // Subnormal: eight times the mantissa, perhaps with a carry into the exponent.
      mantissa *= 8;
      while (mantissa >= 0x800u) {
        mantissa >>= 1;
        ++exponent;
      }
      if (mantissa >= 0x400u) {
        ++exponent;
        mantissa &= 0x3FFu;
      }
    } else {
      exponent += 3;
    }
    *out = static_cast<uint16_t>(sign | (exponent << 10) | mantissa);
    return true;
  }

  template <class S, int R, int H, int C, int kIndex>
  static FLOTILLA_INLINE void NibbleStep(typename S::I (&dot)[C][R * H],
                                         const typename S::I (&packed)[H], const BlockRows<R>& x,
                                         int k) {
    typename S::I weights[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) weights[h] = S::template Nibble<kIndex>(packed[h]);
    DotStep<S, R, H, C>(dot, kIndex % C, weights, x, k + 2 * kIndex);
  }
};

}  // namespace flotilla::kernels
