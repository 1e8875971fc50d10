// AVX-512 (F, BW, VL, DQ, VNNI): one register per 16 lanes. See simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd.h"

namespace flotilla::kernels {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;

  // Register tiles: 32 registers hold 8 rows x 32 columns of dot products, 8 x 32
  // of fp32 sums, and in attention 6 rows x 64 keys.
  static constexpr int kI16Rows = 8;
  static constexpr int kDotSums = 8;        // vpdpwssd takes five clocks, two begin in each
  static constexpr int kRegisterSums = 12;  // beside as many dot products
  static constexpr int kF32Rows = 8;
  static constexpr int kHalves = 2;          // 16-column halves of a panel per tile
  static constexpr int kTransposedRows = 8;  // of TransposeBlock; 0: there is none
  static constexpr int kAttentionRows = 6;
  static constexpr int AttentionVectors(int) { return 4; }

  static FLOTILLA_INLINE F Zero() { return _mm512_setzero_ps(); }
  static FLOTILLA_INLINE F Set1(float x) { return _mm512_set1_ps(x); }
  static FLOTILLA_INLINE F Load(const float* p) { return _mm512_loadu_ps(p); }
  static FLOTILLA_INLINE void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  // The first n (0..16) lanes; the others load as zero and are not stored.
  static FLOTILLA_INLINE F LoadN(const float* p, int n) {
    return _mm512_maskz_loadu_ps(FirstN(n), p);
  }
  static FLOTILLA_INLINE void StoreN(float* p, int n, F x) {
    _mm512_mask_storeu_ps(p, FirstN(n), x);
  }

  static FLOTILLA_INLINE F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static FLOTILLA_INLINE F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static FLOTILLA_INLINE F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static FLOTILLA_INLINE F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static FLOTILLA_INLINE F Sqrt(F a) { return _mm512_sqrt_ps(a); }
  static FLOTILLA_INLINE F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // a > b ? a : b and a < b ? a : b; b when either is NaN.
  static FLOTILLA_INLINE F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static FLOTILLA_INLINE F Min(F a, F b) { return _mm512_min_ps(a, b); }

  static FLOTILLA_INLINE M FirstN(int n) { return static_cast<M>((1u << n) - 1u); }
  static FLOTILLA_INLINE M Gt(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static FLOTILLA_INLINE M Eq(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static FLOTILLA_INLINE M IsNan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static FLOTILLA_INLINE M IGt(I a, I b) { return _mm512_cmpgt_epi32_mask(a, b); }
  static FLOTILLA_INLINE M And(M a, M b) { return a & b; }
  static FLOTILLA_INLINE M Or(M a, M b) { return a | b; }
  static FLOTILLA_INLINE M Not(M a) { return static_cast<M>(~a); }
  static FLOTILLA_INLINE F Select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static FLOTILLA_INLINE I ISelect(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }
  static FLOTILLA_INLINE uint32_t Bitmap(M m) { return m; }

  static FLOTILLA_INLINE I IZero() { return _mm512_setzero_si512(); }
  static FLOTILLA_INLINE I ISet1(int32_t x) { return _mm512_set1_epi32(x); }
  static FLOTILLA_INLINE I Iota() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static FLOTILLA_INLINE I ILoad(const void* p) { return _mm512_loadu_si512(p); }
  static FLOTILLA_INLINE void IStore(void* p, I x) { _mm512_storeu_si512(p, x); }
  static FLOTILLA_INLINE I IAdd(I a, I b) { return _mm512_add_epi32(a, b); }
  static FLOTILLA_INLINE I ISub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static FLOTILLA_INLINE I IMul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static FLOTILLA_INLINE I IAnd(I a, I b) { return _mm512_and_si512(a, b); }
  static FLOTILLA_INLINE I IOr(I a, I b) { return _mm512_or_si512(a, b); }
  static FLOTILLA_INLINE I IXor(I a, I b) { return _mm512_xor_si512(a, b); }
  static FLOTILLA_INLINE I IMax(I a, I b) { return _mm512_max_epi32(a, b); }
  template <int kBits>
  static FLOTILLA_INLINE I Shl(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static FLOTILLA_INLINE I Shr(I a) {
    return _mm512_srli_epi32(a, kBits);
  }
  template <int kBits>
  static FLOTILLA_INLINE I Sar(I a) {
    return _mm512_srai_epi32(a, kBits);
  }
  static FLOTILLA_INLINE F ToFloat(I a) { return _mm512_cvtepi32_ps(a); }
  static FLOTILLA_INLINE I ToInt(F a) { return _mm512_cvtps_epi32(a); }  // half to even
  static FLOTILLA_INLINE I Bits(F a) { return _mm512_castps_si512(a); }
  static FLOTILLA_INLINE F FromBits(I a) { return _mm512_castsi512_ps(a); }

  // Lane i and i+8, then i and i+4, i and i+2, i and i+1.
  static FLOTILLA_INLINE float LaneTree(F x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  static FLOTILLA_INLINE float MaxLane(F x) { return _mm512_reduce_max_ps(x); }
  static FLOTILLA_INLINE void ISums(I x, I y, int32_t& x_sum, int32_t& y_sum) {
    const auto half = [](I z) {
      return _mm256_add_epi32(_mm512_castsi512_si256(z), _mm512_extracti64x4_epi64(z, 1));
    };
    const __m256i pairs = _mm256_hadd_epi32(half(x), half(y));
    const __m128i sums =
        _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128i both = _mm_hadd_epi32(sums, sums);
    x_sum = _mm_cvtsi128_si32(both);
    y_sum = _mm_extract_epi32(both, 1);
  }
  static FLOTILLA_INLINE int32_t IMaxLane(I x) { return _mm512_reduce_max_epi32(x); }

  // 16 halves to fp32.
  static FLOTILLA_INLINE F LoadBf16(const void* p) {
    const __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static FLOTILLA_INLINE F LoadHalf(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  // One half.
  static FLOTILLA_INLINE float HalfToFloat(uint16_t x) { return _cvtsh_ss(x); }
  // 16 bytes to fp32: whole numbers from 0 to 255, and FP8 (E4M3) / 256.
  static FLOTILLA_INLINE F LoadUint8(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  }
  static FLOTILLA_INLINE I ILoadUint8(const void* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static FLOTILLA_INLINE F LoadFp8(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    return _mm512_cvtph_ps(
        _mm256_and_si256(halves, _mm256_set1_epi16(static_cast<int16_t>(0xBF80))));
  }
  static FLOTILLA_INLINE F LoadE5m2(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
  }
  // 16 codes of 4 or 2 bits in a word (KvCodeBit).
  template <int kBits>
  static FLOTILLA_INLINE F LoadCodes(const void* p) {
    I x;
    if constexpr (kBits == 4) {
      int64_t word;
      std::memcpy(&word, p, sizeof word);
      const I shifts = _mm512_slli_epi32(_mm512_srli_epi32(Iota(), 1), 2);
      x = _mm512_srlv_epi32(_mm512_set1_epi64(word), shifts);
    } else {
      int32_t word;
      std::memcpy(&word, p, sizeof word);
      x = _mm512_srlv_epi32(_mm512_set1_epi32(word), _mm512_slli_epi32(Iota(), 1));
    }
    return ToFloat(_mm512_and_si512(x, _mm512_set1_epi32((1 << kBits) - 1)));
  }
  // 16 halves, to nearest even; and 16 integers from 0 to 255.
  static FLOTILLA_INLINE void StoreHalf(void* p, F x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static FLOTILLA_INLINE void StoreBytes(void* p, I x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
  }
  // x[0], x[0], x[1], x[1], ... x[7].
  static FLOTILLA_INLINE F LoadTwice(const float* p) {
    const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }
  static FLOTILLA_INLINE F SwapPairs(F x) { return _mm512_permute_ps(x, 0xB1); }
  static FLOTILLA_INLINE F NegateEven(F x) {
    return _mm512_xor_ps(x, _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000)));
  }
  // 16 int32 within int16 range.
  static FLOTILLA_INLINE void StoreInt16(int16_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
  }

  // Writes x[r][k .. k + 31] of kTransposedRows rows so that the numbers of a k are beside each
  // other: those of k + i are at out[TransposedAt(i)].
  static FLOTILLA_INLINE void TransposeBlock(const int16_t* const (&x)[kTransposedRows], int k,
                                             int16_t* out) {
    I rows[8], pairs[8], fours[8];
    FLOTILLA_UNROLL
    for (int r = 0; r < 8; ++r) rows[r] = ILoad(x[r] + k);
    FLOTILLA_UNROLL
    for (int i = 0; i < 4; ++i) {
      pairs[i] = _mm512_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
      pairs[4 + i] = _mm512_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
    }
    // fours[4 h + 2 i + j]: rows 4 j .. 4 j + 3 of the k 4 h + 2 i and the next one of each lane.
    FLOTILLA_UNROLL
    for (int h = 0; h < 2; ++h) {
      FLOTILLA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const I a = pairs[4 * h + 2 * j], b = pairs[4 * h + 2 * j + 1];
        fours[4 * h + j] = _mm512_unpacklo_epi32(a, b);
        fours[4 * h + 2 + j] = _mm512_unpackhi_epi32(a, b);
      }
    }
    FLOTILLA_UNROLL
    for (int i = 0; i < 4; ++i) {
      IStore(out + 64 * i, _mm512_unpacklo_epi64(fours[2 * i], fours[2 * i + 1]));
      IStore(out + 64 * i + 32, _mm512_unpackhi_epi64(fours[2 * i], fours[2 * i + 1]));
    }
  }
  static FLOTILLA_INLINE int TransposedAt(int i) { return i % 8 * 32 + i / 8 * 8; }
  // sums[r] += factor * x[r] of kTransposedRows rows r, each rounded once.
  static FLOTILLA_INLINE void AddRows(float factor, const int16_t* x, float* sums) {
    const __m256i wide =
        _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    _mm256_storeu_ps(sums, _mm256_fmadd_ps(_mm256_set1_ps(factor), _mm256_cvtepi32_ps(wide),
                                           _mm256_loadu_ps(sums)));
  }

  // Integer dot products on 32 int16 = 16 columns x 2 k.
  template <int kIndex>
  static FLOTILLA_INLINE I Nibble(I x) {
    const __m512i shifted = kIndex == 0 ? x : _mm512_srli_epi16(x, 4 * kIndex);
    return kIndex == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16(15));
  }
  // Sixteen int8 as 16-bit lanes, twice: places have five bits.
  using Table = __m512i;
  static FLOTILLA_INLINE Table LoadTable(const int8_t (&values)[16]) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    return _mm512_broadcast_i64x4(_mm256_cvtepi8_epi16(bytes));
  }
  // Sixteen floats, and their entries at the lowest four bits of each lane.
  using FloatTable = __m512;
  static FLOTILLA_INLINE FloatTable LoadFloatTable(const float (&values)[16]) {
    return _mm512_loadu_ps(values);
  }
  // The same of sixteen halves.
  static FLOTILLA_INLINE FloatTable HalfTable(const void* p) { return LoadHalf(p); }
  static FLOTILLA_INLINE F FloatEntry(I places, FloatTable table) {
    return _mm512_permutexvar_ps(places, table);
  }
  // The entries of a table at the nibbles kIndex. Only the lower five bits of a lane count.
  template <int kIndex>
  static FLOTILLA_INLINE I TableNibble(I x, Table table) {
    const __m512i places = kIndex == 0 ? x : _mm512_srli_epi16(x, 4 * kIndex);
    return _mm512_permutexvar_epi16(places, table);
  }
  template <int kBits>
  static FLOTILLA_INLINE I Shl16(I x) {
    return _mm512_slli_epi16(x, kBits);
  }
  template <int kBits>
  static FLOTILLA_INLINE I Sar16(I x) {
    return _mm512_srai_epi16(x, kBits);
  }
  static FLOTILLA_INLINE I WidenBytes(const void* p) {
    return _mm512_cvtepi8_epi16(_mm256_load_si256(static_cast<const __m256i*>(p)));
  }
  static FLOTILLA_INLINE I BroadcastPair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static FLOTILLA_INLINE I DotPairs(I acc, I weights, I x) {
    return _mm512_dpwssd_epi32(acc, weights, x);
  }

  // Dot products of 64 bytes = 16 columns x 4 k, from 0 to 255, and four int8.
  using Quads = __m512i;
  static FLOTILLA_INLINE Quads LoadQuads(const void* p) {
    return _mm512_load_si512(static_cast<const __m512i*>(p));
  }
  static FLOTILLA_INLINE I BroadcastQuad(const int8_t* p) {
    int32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    return _mm512_set1_epi32(quad);
  }
  // vpdpbusd is exact: it adds products of 16 bits in 32.
  static FLOTILLA_INLINE I DotQuads(I acc, Quads weights, I x) {
    return _mm512_dpbusd_epi32(acc, weights, x);
  }
};

}  // namespace flotilla::kernels
