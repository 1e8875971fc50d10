// Encoding of K and V into the paged cache.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace flotilla::kernels {

// Start of the record of (head, position).
FLOTILLA_INLINE std::byte* KvRecord(const KvView& cache, int head, int position) {
  return cache.base + cache.block_table[position / kKvBlockTokens] * cache.block_stride +
         head * cache.head_stride;
}

// bf16 bits (round to nearest even, NaN kept and quiet) in the low half of each lane.
template <class S>
FLOTILLA_INLINE typename S::I ToBf16(typename S::F x) {
  const auto bits = S::Bits(x);
  const auto high = S::template Shr<16>(bits);
  const auto odd = S::IAnd(high, S::ISet1(1));
  const auto rounded = S::template Shr<16>(S::IAdd(bits, S::IAdd(S::ISet1(0x7FFF), odd)));
  return S::ISelect(S::IsNan(x), S::IOr(high, S::ISet1(0x40)), rounded);
}

template <class S>
FLOTILLA_INLINE void WriteBf16(const float* k, const float* v, const KvDims& dims, int slot,
                               std::byte* record) {
  for (int d = 0; d < dims.key; d += 16) {
    // K: dimensions (2i, 2i + 1) of this token are one 32-bit word of row i.
    alignas(64) uint32_t words[16];
    S::IStore(words, ToBf16<S>(S::Load(k + d)));
    uint32_t* keys = reinterpret_cast<uint32_t*>(record) + d / 2 * kKvBlockTokens + slot;
    FLOTILLA_UNROLL
    for (int i = 0; i < 8; ++i) keys[i * kKvBlockTokens] = words[2 * i] | words[2 * i + 1] << 16;
  }
  if (dims.prefix) return;
  std::byte* values = record + KvValueOffset(KvFormat::kBf16, dims) + slot / 2 * dims.value * 4;
  for (int d = 0; d < dims.value; d += 16) {
    // V: an even token is the low half of its words and clears the high one.
    const auto encoded = ToBf16<S>(S::Load(v + d));
    if (slot % 2 == 0) {
      S::IStore(values + d * 4, encoded);
    } else {
      const auto partner = S::IAnd(S::ILoad(values + d * 4), S::ISet1(0xFFFF));
      S::IStore(values + d * 4, S::IOr(partner, S::template Shl<16>(encoded)));
    }
  }
}

// Writes `count` tokens of one block. K of four tokens is transposed in registers, four dimensions
// at a time. Single tokens, as in decode, are scattered.
template <class S>
FLOTILLA_INLINE void WriteF32(const float* k, const float* v, int64_t stride, int count,
                              const KvDims& dims, int slot, std::byte* record) {
  float* keys = reinterpret_cast<float*>(record) + slot;
  float* values = reinterpret_cast<float*>(record + KvValueOffset(KvFormat::kF32, dims));
  int token = 0;
  for (; token + 4 <= count; token += 4) {
    const float* source = k + token * stride;
    for (int d = 0; d < dims.key; d += 4) {
      __m128 a = _mm_loadu_ps(source + d);
      __m128 b = _mm_loadu_ps(source + stride + d);
      __m128 c = _mm_loadu_ps(source + 2 * stride + d);
      __m128 e = _mm_loadu_ps(source + 3 * stride + d);
      _MM_TRANSPOSE4_PS(a, b, c, e);
      float* line = keys + d * kKvBlockTokens + token;
      _mm_storeu_ps(line, a);
      _mm_storeu_ps(line + kKvBlockTokens, b);
      _mm_storeu_ps(line + 2 * kKvBlockTokens, c);
      _mm_storeu_ps(line + 3 * kKvBlockTokens, e);
    }
  }
  for (; token < count; ++token) {
    for (int d = 0; d < dims.key; ++d) keys[d * kKvBlockTokens + token] = k[token * stride + d];
  }
  if (dims.prefix) return;
  for (int i = 0; i < count; ++i) {
    for (int d = 0; d < dims.value; d += 16) {
      S::Store(values + (slot + i) * dims.value + d, S::Load(v + i * stride + d));
    }
  }
}

template <class S>
void KvWrite(const KvWriteArgs& args, int token_begin, int token_end) {
  const KvDims& dims = args.cache.dims;
  // Runs of tokens that share a block.
  for (int token = token_begin; token < token_end;) {
    const int position = args.first_position + token;
    const int slot = position % kKvBlockTokens;
    const int room = kKvBlockTokens - slot;
    const int count = token_end - token < room ? token_end - token : room;
    for (int head = 0; head < args.heads; ++head) {
      const float* k = args.k + token * args.token_stride + head * dims.key;
      const float* v =
          dims.prefix ? nullptr : args.v + token * args.token_stride + head * dims.value;
      std::byte* record = KvRecord(args.cache, head, position);
      if (args.cache.format == KvFormat::kF32) {
        WriteF32<S>(k, v, args.token_stride, count, dims, slot, record);
        continue;
      }
      for (int i = 0; i < count; ++i) {
        WriteBf16<S>(k + i * args.token_stride, dims.prefix ? nullptr : v + i * args.token_stride,
                     dims, slot + i, record);
      }
    }
    token += count;
  }
}

}  // namespace flotilla::kernels
