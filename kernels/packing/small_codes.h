// What the kinds of codes of 4 and 5 bits share.
//
// A record is the lower four bits of the codes q (NibbleLanes), with kBits = 5 the fifth bits, and
// then, per column, what the 32 weights have in common:
//   kMinimums  d [32] fp16, m [32] fp16. weight = d q + m. Codes without minimums, the lowest of
//              which is -2^(kBits - 1), are stored above 0 with m = -2^(kBits - 1) d, which is
//              exact in fp16.
//   kWindows   the factors [32 columns][2] of the window's d, f, and of its m, g: 8 bits each. The
//              window has d [32] fp16, m [32] fp16. weight = d f q + m g. The products are exact.
//   kZeros     ScaleAndZero [32]: d and a zero z. weight = d (q - z). Codes of 4 bits without
//              zeros have 8.
// The fifth bits are [2 halves][16 columns][2 j] 16-bit lanes: bit 4 z + n of a lane belongs to the
// nibble n of lane (z, column, j).
//
// Scales are fp16, because single-row decode is bound by the bytes read: they cost 1 bit per
// weight, and fp32 would cost 2. One instruction converts them to fp32 exactly.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cpu/dots-inl.h"
#include "kernels/packing/kind.h"
#include "kernels/packing/scale_and_zero.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

// What 32 weights of a column have in common.
enum class Scaling { kMinimums, kWindows, kZeros };

// How 32 x 32 codes of 4 bits lie in 512 bytes: [2 halves][4 z][16 columns][2 j] 16-bit lanes.
// Nibble n of a lane (bits 4n..4n+3) is the code of k = 8 z + 2 n + j, so one 64-byte load gives
// four operands of 16 columns x 2 k by shift and mask.
struct NibbleLanes {
  static constexpr int kBytes = 512;

  // Packs the lowest 4 bits of a column's codes, which have no other bits.
  static FLOTILLA_INLINE void Pack(const uint8_t (&codes)[kBlockK], int lane, std::byte* record) {
    constexpr uint64_t kEven = 0x000F000F000F000Fu;
    for (int z = 0; z < 4; ++z) {
      uint64_t eight;
      std::memcpy(&eight, codes + z * 8, sizeof eight);
      StoreAs(record + Lane(lane, z * 8) * 2, Gather4(eight & kEven) | Gather4((eight >> 8) & kEven)
                                                                           << 16);
    }
  }

  static FLOTILLA_INLINE int Code(const std::byte* record, int lane, int k) {
    return LoadAs<uint16_t>(record + Lane(lane, k) * 2) >> (k % 8 / 2 * 4) & 0xF;
  }

  // Codes k to k + 3, a byte each: nibbles n and n + 1 of the lanes of both j.
  static FLOTILLA_INLINE uint32_t FourCodes(const std::byte* record, int lane, int k) {
    const uint32_t lanes = LoadAs<uint32_t>(record + Lane(lane, k / 8 * 8) * 2) >> k % 8 / 2 * 4;
    const uint32_t pairs = (lanes & 0xFFu) | (lanes >> 8 & 0xFF00u);
    return (pairs & 0x0F0Fu) | (pairs << 12 & 0x0F0F0000u);
  }

 private:
  // The 16-bit lane that has the code of k.
  static FLOTILLA_INLINE int Lane(int lane, int k) {
    return (lane / 16 * 4 + k / 8) * 32 + lane % 16 * 2 + k % 2;
  }

  // Returns the four nibbles in bits 0-3, 16-19, 32-35, 48-51 side by side in bits 0-15.
  static FLOTILLA_INLINE uint32_t Gather4(uint64_t x) {
    x = (x | x >> 12) & 0x000000FF000000FFu;
    return static_cast<uint32_t>(x | x >> 24) & 0xFFFFu;
  }
};

template <int kBits, Scaling kScaling>
struct SmallCodes {
  static constexpr bool kWindows = kScaling == Scaling::kWindows;
  static constexpr bool kZeros = kScaling == Scaling::kZeros;
  static constexpr int kFifths = NibbleLanes::kBytes;  // bytes from a record's begin
  static constexpr int kScales = kFifths + (kBits == 5 ? 128 : 0);
  static constexpr int kRecordBytes = kScales + (kWindows ? 64 : 128);
  static constexpr int kSuperBytes = kWindows ? 128 : 0;
  using Record = std::conditional_t<kWindows, SuperRecord, const std::byte*>;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    if constexpr (kZeros) return PacksWithZeros(encoding, kLowest, 0);
    const int low = kWindows || encoding.has_minimums ? 0 : kLowest;
    return encoding == WeightEncoding{.numbers = WeightEncoding::Numbers::kCodes,
                                      .low = static_cast<int8_t>(low),
                                      .high = static_cast<int8_t>(low + (1 << kBits) - 1),
                                      .has_factors = kWindows,
                                      .has_minimums = kWindows || encoding.has_minimums,
                                      .has_minimum_factors = kWindows};
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding& encoding, const WeightRow& row, int k,
                                   int lane, std::byte* record, std::byte* super = nullptr) {
    const uint16_t d = row.scales[k / kScaleGroup];
    uint16_t m = row.minimums[k / kScaleGroup];
    if constexpr (kZeros) {
      const int zero = encoding.has_zeros ? row.zeros[k / kScaleGroup] : -kLowest;
      if (zero < 0 || zero > 1 << kBits) return false;
      StoreAs(record + kScales + lane * 4, ScaleAndZero::Join(encoding, d, zero));
    } else if constexpr (kWindows) {
      // The halves of a block share their factors.
      const int group = k / kFactorGroup;
      if (row.factors[group] != row.factors[group + 1] ||
          row.minimum_factors[group] != row.minimum_factors[group + 1]) {
        return false;
      }
      StoreAs(super + lane * 2, d);
      StoreAs(super + kMinimums + lane * 2, m);
      StoreAs(record + kScales + lane * 2, row.factors[group]);
      StoreAs(record + kScales + lane * 2 + 1, row.minimum_factors[group]);
    } else {
      if (!encoding.has_minimums && !LowestTimes(d, &m)) return false;
      StoreAs(record + kScales + lane * 2, d);
      StoreAs(record + kScales + kMinimums + lane * 2, m);
    }
    uint8_t codes[kBlockK];
    for (int i = 0; i < kBlockK; ++i) {
      codes[i] = static_cast<uint8_t>(row.codes[k + i] - encoding.low);
    }
    if constexpr (kBits == 5) {
      uint16_t fifths[2] = {};
      for (int i = 0; i < kBlockK; ++i) {
        fifths[i % 2] |= static_cast<uint16_t>((codes[i] >> 4) << i / 2);
        codes[i] &= 15;
      }
      std::memcpy(record + kFifths + lane * 4, fifths, sizeof fifths);
    }
    NibbleLanes::Pack(codes, lane, record);
    return true;
  }

  static FLOTILLA_INLINE void Decode(const Record& record, int lane, float* out) {
    const float d = Scale(record, lane), m = Minimum(record, lane);
    for (int k = 0; k < kBlockK; ++k) {
      const auto q = static_cast<float>(Code(At(record), lane, k));
      out[k] = kZeros ? d * (q + m) : d * q + m;
    }
  }

  static FLOTILLA_INLINE uint32_t FourCodes(const Record& record, int lane,
                                            int k) requires(kBits == 4) {
    return NibbleLanes::FourCodes(At(record), lane, k);
  }

  // acc = fma(d, float(dot), acc), then acc = fma(m, sum, acc), d and m being the products where
  // there are factors. Codes of 4 bits have dots below 2^24, which are exact in fp32; those of 5
  // bits may round. With zeros, acc = fma(d, dot - z sum, acc): products of 4 bits with zeros up to
  // 16 are exact, too.
  static FLOTILLA_INLINE float AddBlock(const Record& record, int lane, const int16_t* x,
                                        const float* sums, float acc) {
    int32_t dot = 0;
    for (int k = 0; k < kBlockK; ++k) dot += x[k] * Code(At(record), lane, k);
    return AddDot(record, lane, dot, sums, acc);
  }
  static FLOTILLA_INLINE float AddDot(const Record& record, int lane, int32_t dot,
                                      const float* sums, float acc) {
    const float d = Scale(record, lane), m = Minimum(record, lane);
    const auto exact = static_cast<float>(dot);
    if constexpr (kZeros) return std::fma(d, std::fma(m, sums[0], exact), acc);
    return std::fma(m, sums[0], std::fma(d, exact, acc));
  }

  template <class S, int R, int H>
  static FLOTILLA_INLINE void AddBlock(const Record& record, int half, const BlockRows<R>& x,
                                       TileSums<S, R * H>& acc) {
    constexpr int C = DotChains<S>(R * H);
    typename S::I dot[C][R * H];
    ClearDots<S>(dot);
    typename S::I fifths[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      if constexpr (kBits == 5) fifths[h] = S::ILoad(At(record) + kFifths + (half + h) * 64);
    }
    Steps<S, R, H, C, 0>(dot, At(record), half, fifths, x);
    Steps<S, R, H, C, 1>(dot, At(record), half, fifths, x);
    Steps<S, R, H, C, 2>(dot, At(record), half, fifths, x);
    Steps<S, R, H, C, 3>(dot, At(record), half, fifths, x);
    typename S::I dots[R * H];
    SumChains<S>(dot, dots);
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) {
      typename S::F d, m;
      Scales<S>(record, half + h, d, m);
      FLOTILLA_UNROLL
      for (int r = 0; r < R; ++r) {
        const int i = r * H + h;
        const auto sum = S::Set1(x.sum(r));
        if constexpr (kZeros) {
          acc.Set(i, S::Fma(d, S::Fma(m, sum, S::ToFloat(dots[i])), acc.Get(i)));
        } else {
          acc.Set(i, S::Fma(m, sum, S::Fma(d, S::ToFloat(dots[i]), acc.Get(i))));
        }
      }
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const Record& record, float* out) {
    for (int h = 0; h < 2; ++h) {
      typename S::F d, m;
      Scales<S>(record, h, d, m);
      typename S::I fifths[1];
      if constexpr (kBits == 5) fifths[0] = S::ILoad(At(record) + kFifths + h * 64);
      DecodeLanes<S, 0>(At(record), h, fifths, d, m, out);
      DecodeLanes<S, 1>(At(record), h, fifths, d, m, out);
      DecodeLanes<S, 2>(At(record), h, fifths, d, m, out);
      DecodeLanes<S, 3>(At(record), h, fifths, d, m, out);
    }
  }

 private:
  static_assert(kBlockK == kActivationGroup && kBlockK == kScaleGroup);
  static constexpr int kMinimums = 64;  // bytes from the first scale
  static constexpr int kLowest = -(1 << (kBits - 1));

  static FLOTILLA_INLINE const std::byte* At(const std::byte* record) { return record; }
  static FLOTILLA_INLINE const std::byte* At(const SuperRecord& record) { return record.record; }

  // The fp16 scales of all columns, and kMinimums behind them the minimums.
  static FLOTILLA_INLINE const std::byte* Halves(const Record& record) {
    if constexpr (kWindows) {
      return record.super;
    } else {
      return record + kScales;
    }
  }

  static FLOTILLA_INLINE float Scale(const Record& record, int lane) {
    if constexpr (kZeros) return ScaleAndZero::Scale(record + kScales, lane);
    const float d = HalfToFloat(LoadAs<uint16_t>(Halves(record) + lane * 2));
    return kWindows ? d * static_cast<float>(LoadAs<int8_t>(At(record) + kScales + lane * 2)) : d;
  }
  // With zeros, the negative of the zero.
  static FLOTILLA_INLINE float Minimum(const Record& record, int lane) {
    if constexpr (kZeros) return -static_cast<float>(ScaleAndZero::Zero(record + kScales, lane));
    const float m = HalfToFloat(LoadAs<uint16_t>(Halves(record) + kMinimums + lane * 2));
    return kWindows ? m * static_cast<float>(LoadAs<int8_t>(At(record) + kScales + lane * 2 + 1))
                    : m;
  }

  static FLOTILLA_INLINE int Code(const std::byte* record, int lane, int k) {
    int code = NibbleLanes::Code(record, lane, k);
    if constexpr (kBits == 5) {
      code |= (LoadAs<uint16_t>(record + kFifths + lane * 4 + k % 2 * 2) >> k / 2 & 1) << 4;
    }
    return code;
  }

  template <class S>
  static FLOTILLA_INLINE void Scales(const Record& record, int half, typename S::F& d,
                                     typename S::F& m) {
    if constexpr (kZeros) {
      d = ScaleAndZero::Scales<S>(record + kScales, half);
      m = S::ToFloat(S::ISub(S::IZero(), ScaleAndZero::Zeros<S>(record + kScales, half)));
      return;
    }
    d = S::LoadHalf(Halves(record) + half * 32);
    m = S::LoadHalf(Halves(record) + kMinimums + half * 32);
    if constexpr (kWindows) {
      const auto factors = S::WidenBytes(At(record) + kScales + half * 32);
      d = S::Mul(d, S::ToFloat(S::template Sar<16>(S::template Shl<16>(factors))));
      m = S::Mul(m, S::ToFloat(S::template Sar<16>(factors)));
    }
  }

  // kLowest d as fp16: exponent + kBits - 1 and the sign flipped; exact for every d whose result
  // is finite. Returns false otherwise.
  static FLOTILLA_INLINE bool LowestTimes(uint16_t d, uint16_t* out) {
    const uint16_t sign = (d & 0x8000u) ^ 0x8000u;
    uint32_t exponent = (d >> 10) & 31u;
    uint32_t mantissa = d & 0x3FFu;
    if (exponent + kBits - 1 >= 31) return false;
    if (exponent == 0) {
      // Subnormal: the mantissa is multiplied, perhaps with a carry into the exponent.
      mantissa <<= kBits - 1;
      while (mantissa >= 0x800u) {
        mantissa >>= 1;
        ++exponent;
      }
      if (mantissa >= 0x400u) {
        ++exponent;
        mantissa &= 0x3FFu;
      }
    } else {
      exponent += kBits - 1;
    }
    *out = static_cast<uint16_t>(sign | (exponent << 10) | mantissa);
    return true;
  }

  // The codes of nibble n of lanes z.
  template <class S, int z, int n>
  static FLOTILLA_INLINE typename S::I Operand(typename S::I packed, typename S::I fifths) {
    const auto low = S::template Nibble<n>(packed);
    if constexpr (kBits == 4) {
      return low;
    } else {
      constexpr int bit = z * 4 + n;
      typename S::I moved;
      if constexpr (bit < 4) {
        moved = S::template Shl16<4 - bit>(fifths);
      } else if constexpr (bit == 4) {
        moved = fifths;
      } else {
        moved = S::template Sar16<bit - 4>(fifths);
      }
      return S::IOr(low, S::IAnd(moved, S::ISet1(0x00100010)));
    }
  }

  template <class S, int R, int H, int C, int z>
  static FLOTILLA_INLINE void Steps(typename S::I (&dot)[C][R * H], const std::byte* record,
                                    int half, const typename S::I (&fifths)[H],
                                    const BlockRows<R>& x) {
    typename S::I packed[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) packed[h] = S::ILoad(record + (half + h) * 256 + z * 64);
    Step<S, R, H, C, z, 0>(dot, packed, fifths, x);
    Step<S, R, H, C, z, 1>(dot, packed, fifths, x);
    Step<S, R, H, C, z, 2>(dot, packed, fifths, x);
    Step<S, R, H, C, z, 3>(dot, packed, fifths, x);
  }

  template <class S, int R, int H, int C, int z, int n>
  static FLOTILLA_INLINE void Step(typename S::I (&dot)[C][R * H], const typename S::I (&packed)[H],
                                   const typename S::I (&fifths)[H], const BlockRows<R>& x) {
    typename S::I weights[H];
    FLOTILLA_UNROLL
    for (int h = 0; h < H; ++h) weights[h] = Operand<S, z, n>(packed[h], fifths[h]);
    DotStep<S, R, H, C>(dot, n % C, weights, x, z * 8 + 2 * n);
  }

  template <class S, int z>
  static FLOTILLA_INLINE void DecodeLanes(const std::byte* record, int half,
                                          const typename S::I (&fifths)[1], typename S::F d,
                                          typename S::F m, float* out) {
    const auto packed = S::ILoad(record + half * 256 + z * 64);
    const auto store = [&](typename S::I codes, int n) FLOTILLA_INLINE_LAMBDA {
      float* p = out + (z * 8 + n * 2) * kPanelColumns + half * 16;
      const auto even = S::ToFloat(S::IAnd(codes, S::ISet1(0xFFFF)));
      const auto odd = S::ToFloat(S::template Shr<16>(codes));
      S::Store(p, kZeros ? S::Mul(d, S::Add(even, m)) : S::Fma(d, even, m));
      S::Store(p + kPanelColumns, kZeros ? S::Mul(d, S::Add(odd, m)) : S::Fma(d, odd, m));
    };
    store(Operand<S, z, 0>(packed, fifths[0]), 0);
    store(Operand<S, z, 1>(packed, fifths[0]), 1);
    store(Operand<S, z, 2>(packed, fifths[0]), 2);
    store(Operand<S, z, 3>(packed, fifths[0]), 3);
  }
};

}  // namespace flotilla::kernels
