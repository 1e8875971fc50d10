// AVX2, FMA, F16C: two registers per 16 lanes. See simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd.h"

namespace flotilla::kernels {

struct Avx2 {
  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  using M = F;  // all ones or all zeros per lane

  // Sixteen registers: 4 rows x 16 columns of dot products, 6 x 16 of fp32 sums, and
  // in attention 6 rows x 16 keys.
  static constexpr int kI16Rows = 4;
  static constexpr int kDotSums = 2;       // of two registers; a sum takes one clock
  static constexpr int kRegisterSums = 2;  // beside as many dot products
  static constexpr int kF32Rows = 6;
  static constexpr int kTransposedRows = 0;
  static constexpr int kHalves = 1;
  static constexpr int kAttentionRows = 6;
  // The number of blocks of 16 keys at a time. It gives enough sums that no sum waits for its
  // own previous addition.
  static constexpr int AttentionVectors(int rows) { return rows > 3 ? 1 : 2; }

  static FLOTILLA_INLINE F Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static FLOTILLA_INLINE F Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static FLOTILLA_INLINE F Load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static FLOTILLA_INLINE void Store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static FLOTILLA_INLINE F LoadN(const float* p, int n) {
    const I m = Bits(FirstN(n));
    return {_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b)};
  }
  static FLOTILLA_INLINE void StoreN(float* p, int n, F x) {
    const I m = Bits(FirstN(n));
    _mm256_maskstore_ps(p, m.a, x.a);
    _mm256_maskstore_ps(p + 8, m.b, x.b);
  }

  static FLOTILLA_INLINE F Add(F x, F y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
  }
  static FLOTILLA_INLINE F Sub(F x, F y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
  }
  static FLOTILLA_INLINE F Mul(F x, F y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
  }
  static FLOTILLA_INLINE F Div(F x, F y) {
    return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
  }
  static FLOTILLA_INLINE F Sqrt(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
  static FLOTILLA_INLINE F Fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static FLOTILLA_INLINE F Max(F x, F y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
  }
  static FLOTILLA_INLINE F Min(F x, F y) {
    return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
  }

  static FLOTILLA_INLINE M FirstN(int n) { return IGt(ISet1(n), Iota()); }
  static FLOTILLA_INLINE M Gt(F x, F y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)};
  }
  static FLOTILLA_INLINE M Eq(F x, F y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
  }
  static FLOTILLA_INLINE M IsNan(F x) {
    return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
  }
  static FLOTILLA_INLINE M IGt(I x, I y) {
    return FromBits({_mm256_cmpgt_epi32(x.a, y.a), _mm256_cmpgt_epi32(x.b, y.b)});
  }
  static FLOTILLA_INLINE M And(M x, M y) {
    return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)};
  }
  static FLOTILLA_INLINE M Or(M x, M y) { return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)}; }
  static FLOTILLA_INLINE M Not(M x) {
    const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return {_mm256_xor_ps(x.a, ones), _mm256_xor_ps(x.b, ones)};
  }
  static FLOTILLA_INLINE F Select(M m, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
  }
  static FLOTILLA_INLINE I ISelect(M m, I yes, I no) {
    return Bits(Select(m, FromBits(yes), FromBits(no)));
  }
  static FLOTILLA_INLINE uint32_t Bitmap(M m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.a) | _mm256_movemask_ps(m.b) << 8);
  }

  static FLOTILLA_INLINE I IZero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static FLOTILLA_INLINE I ISet1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static FLOTILLA_INLINE I Iota() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }
  static FLOTILLA_INLINE I ILoad(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }
  static FLOTILLA_INLINE void IStore(void* p, I x) {
    auto* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, x.a);
    _mm256_storeu_si256(q + 1, x.b);
  }
  static FLOTILLA_INLINE I IAdd(I x, I y) {
    return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
  }
  static FLOTILLA_INLINE I ISub(I x, I y) {
    return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
  }
  static FLOTILLA_INLINE I IMul(I x, I y) {
    return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
  }
  static FLOTILLA_INLINE I IAnd(I x, I y) {
    return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
  }
  static FLOTILLA_INLINE I IOr(I x, I y) {
    return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
  }
  static FLOTILLA_INLINE I IXor(I x, I y) {
    return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
  }
  static FLOTILLA_INLINE I IMax(I x, I y) {
    return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
  }
  template <int kBits>
  static FLOTILLA_INLINE I Shl(I x) {
    return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
  }
  template <int kBits>
  static FLOTILLA_INLINE I Shr(I x) {
    return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)};
  }
  template <int kBits>
  static FLOTILLA_INLINE I Sar(I x) {
    return {_mm256_srai_epi32(x.a, kBits), _mm256_srai_epi32(x.b, kBits)};
  }
  static FLOTILLA_INLINE F ToFloat(I x) {
    return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
  }
  static FLOTILLA_INLINE I ToInt(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
  static FLOTILLA_INLINE I Bits(F x) {
    return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
  }
  static FLOTILLA_INLINE F FromBits(I x) {
    return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
  }

  static FLOTILLA_INLINE float LaneTree(F x) {
    const __m256 half = _mm256_add_ps(x.a, x.b);
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  static FLOTILLA_INLINE float MaxLane(F x) {
    const __m256 half = _mm256_max_ps(x.a, x.b);
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }
  static FLOTILLA_INLINE void ISums(I x, I y, int32_t& x_sum, int32_t& y_sum) {
    const __m256i pairs = _mm256_hadd_epi32(_mm256_add_epi32(x.a, x.b), _mm256_add_epi32(y.a, y.b));
    const __m128i sums =
        _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128i both = _mm_hadd_epi32(sums, sums);
    x_sum = _mm_cvtsi128_si32(both);
    y_sum = _mm_extract_epi32(both, 1);
  }
  static FLOTILLA_INLINE int32_t IMaxLane(I x) {
    const __m256i half = _mm256_max_epi32(x.a, x.b);
    const __m128i quarter =
        _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i pair = _mm_max_epi32(quarter, _mm_shuffle_epi32(quarter, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(pair, _mm_shuffle_epi32(pair, 0xB1)));
  }

  static FLOTILLA_INLINE F LoadBf16(const void* p) {
    const auto* q = static_cast<const __m128i*>(p);
    const auto widen = [](__m128i halves) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    };
    return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
  }
  static FLOTILLA_INLINE F LoadHalf(const void* p) {
    const auto* q = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
  }
  static FLOTILLA_INLINE float HalfToFloat(uint16_t x) { return _cvtsh_ss(x); }
  static FLOTILLA_INLINE F LoadUint8(const void* p) {
    const auto half = [](const void* q) {
      const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i*>(q));
      return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    };
    return {half(p), half(static_cast<const char*>(p) + 8)};
  }
  static FLOTILLA_INLINE I ILoadUint8(const void* p) {
    const auto half = [](const void* q) {
      return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(q)));
    };
    return {half(p), half(static_cast<const char*>(p) + 8)};
  }
  static FLOTILLA_INLINE F LoadFp8(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                            _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  static FLOTILLA_INLINE F LoadE5m2(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  template <int kBits>
  static FLOTILLA_INLINE F LoadCodes(const void* p) {
    const __m256i mask = _mm256_set1_epi32((1 << kBits) - 1);
    const I lane = Iota();
    __m256i words;
    I shifts;
    if constexpr (kBits == 4) {
      int64_t word;
      std::memcpy(&word, p, sizeof word);
      words = _mm256_set1_epi64x(word);
      shifts = Shl<2>(Shr<1>(lane));
    } else {
      int32_t word;
      std::memcpy(&word, p, sizeof word);
      words = _mm256_set1_epi32(word);
      shifts = Shl<1>(lane);
    }
    return ToFloat({_mm256_and_si256(_mm256_srlv_epi32(words, shifts.a), mask),
                    _mm256_and_si256(_mm256_srlv_epi32(words, shifts.b), mask)});
  }
  static FLOTILLA_INLINE void StoreHalf(void* p, F x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    auto* q = static_cast<__m128i*>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, kNearest));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, kNearest));
  }
  static FLOTILLA_INLINE void StoreBytes(void* p, I x) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xD8);
    _mm_storeu_si128(
        static_cast<__m128i*>(p),
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static FLOTILLA_INLINE F LoadTwice(const float* p) {
    const __m256 x = _mm256_loadu_ps(p);
    return {_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
  }
  static FLOTILLA_INLINE F SwapPairs(F x) {
    return {_mm256_permute_ps(x.a, 0xB1), _mm256_permute_ps(x.b, 0xB1)};
  }
  static FLOTILLA_INLINE F NegateEven(F x) {
    const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000));
    return {_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
  }
  static FLOTILLA_INLINE void StoreInt16(int16_t* p, I x) {
    const __m256i packed = _mm256_packs_epi32(x.a, x.b);  // a0 b0 a1 b1 in 64-bit quarters
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
  }

  template <int kIndex>
  static FLOTILLA_INLINE I Nibble(I x) {
    return {Nibble1<kIndex>(x.a), Nibble1<kIndex>(x.b)};
  }
  // Sixteen int8, twice.
  using Table = __m256i;
  static FLOTILLA_INLINE Table LoadTable(const int8_t (&values)[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  struct FloatTable {
    __m256 low, high;
  };
  static FLOTILLA_INLINE FloatTable LoadFloatTable(const float (&values)[16]) {
    return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
  }
  static FLOTILLA_INLINE FloatTable HalfTable(const void* p) {
    const F halves = LoadHalf(p);
    return {halves.a, halves.b};
  }
  static FLOTILLA_INLINE F FloatEntry(I places, const FloatTable& table) {
    return {FloatEntry1(places.a, table), FloatEntry1(places.b, table)};
  }
  // The entries of a table at the nibbles kIndex. The compiler looks up those of kIndex and
  // kIndex + 2 at once, which are the bytes of a lane.
  template <int kIndex>
  static FLOTILLA_INLINE I TableNibble(I x, Table table) {
    return {TableNibble1<kIndex>(x.a, table), TableNibble1<kIndex>(x.b, table)};
  }
  template <int kBits>
  static FLOTILLA_INLINE I Shl16(I x) {
    return {_mm256_slli_epi16(x.a, kBits), _mm256_slli_epi16(x.b, kBits)};
  }
  template <int kBits>
  static FLOTILLA_INLINE I Sar16(I x) {
    return {_mm256_srai_epi16(x.a, kBits), _mm256_srai_epi16(x.b, kBits)};
  }
  static FLOTILLA_INLINE I WidenBytes(const void* p) {
    const auto* q = static_cast<const __m128i*>(p);
    return {_mm256_cvtepi8_epi16(_mm_load_si128(q)), _mm256_cvtepi8_epi16(_mm_load_si128(q + 1))};
  }
  static FLOTILLA_INLINE I BroadcastPair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return ISet1(pair);
  }
  // vpmaddwd is exact: the only overflow needs four times -32768, which neither
  // operand ever holds.
  static FLOTILLA_INLINE I DotPairs(I acc, I weights, I x) {
    return {SumInPlace(acc.a, _mm256_madd_epi16(weights.a, x.a)),
            SumInPlace(acc.b, _mm256_madd_epi16(weights.b, x.b))};
  }

  // vpmaddubsw adds two products in 16 bits and saturates, so bytes are widened: the products of
  // the even k and those of the odd ones are made by vpmaddwd.
  struct Quads {
    I even, odd;
  };
  struct Quad {
    __m256i even, odd;
  };
  static FLOTILLA_INLINE Quads LoadQuads(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    const __m256i a = _mm256_load_si256(q), b = _mm256_load_si256(q + 1);
    const __m256i low = _mm256_set1_epi16(255);
    return {{_mm256_and_si256(a, low), _mm256_and_si256(b, low)},
            {_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)}};
  }
  static FLOTILLA_INLINE Quad BroadcastQuad(const int8_t* p) {
    int32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    const __m256i four = _mm256_set1_epi32(quad);
    return {_mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), _mm256_srai_epi16(four, 8)};
  }
  static FLOTILLA_INLINE I DotQuads(I acc, const Quads& weights, Quad x) {
    acc.a = SumInPlace(acc.a, _mm256_madd_epi16(weights.even.a, x.even));
    acc.b = SumInPlace(acc.b, _mm256_madd_epi16(weights.even.b, x.even));
    return {SumInPlace(acc.a, _mm256_madd_epi16(weights.odd.a, x.odd)),
            SumInPlace(acc.b, _mm256_madd_epi16(weights.odd.b, x.odd))};
  }

 private:
  // This is written by hand, because gcc 12 makes many products of a tile before it adds the
  // first, and keeps them on the stack.
  static FLOTILLA_INLINE __m256i SumInPlace(__m256i sum, __m256i product) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(product));
    return sum;
  }
  template <int kIndex>
  static FLOTILLA_INLINE __m256i Nibble1(__m256i x) {
    const __m256i shifted = kIndex == 0 ? x : _mm256_srli_epi16(x, 4 * kIndex);
    return kIndex == 3 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16(15));
  }
  // A look-up takes the lowest three bits of a lane, and a choice the sign.
  static FLOTILLA_INLINE __m256 FloatEntry1(__m256i places, const FloatTable& table) {
    const __m256 high = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, places),
                            _mm256_permutevar8x32_ps(table.high, places), high);
  }
  template <int kIndex>
  static FLOTILLA_INLINE __m256i TableNibble1(__m256i x, __m256i table) {
    const __m256i shifted = kIndex % 2 == 0 ? x : _mm256_srli_epi16(x, 4);
    const __m256i places = _mm256_and_si256(shifted, _mm256_set1_epi8(15));
    const __m256i entries = _mm256_shuffle_epi8(table, places);
    return _mm256_srai_epi16(kIndex < 2 ? _mm256_slli_epi16(entries, 8) : entries, 8);
  }
};

}  // namespace flotilla::kernels
