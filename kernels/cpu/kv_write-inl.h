// Encoding of K and V into the paged cache, as kernels/kv_codec.h says.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/kv_codec.h"
#include "kernels/ops.h"

namespace flotilla::kernels {

// What the block of a position has of a KV head.
FLOTILLA_INLINE std::byte* KvHead(const KvView& view, int head, int position) {
  const bool runs = view.block_tokens == kKvRunTokens;
  const int block = runs ? position / kKvRunTokens : position / kKvRecordTokens;
  return view.base + view.block_table[block - view.first_block] * view.block_stride +
         head * view.head_stride;
}

// The record of the position, of `bytes` bytes.
FLOTILLA_INLINE std::byte* KvRecord(const KvView& view, int64_t bytes, int head, int position) {
  const bool runs = view.block_tokens == kKvRunTokens;
  const int record = runs ? position % kKvRunTokens / kKvRecordTokens : 0;
  return KvHead(view, head, position) + record * bytes;
}

// Even and odd bf16 of 16 words as fp32.
template <class S>
FLOTILLA_INLINE typename S::F EvenHalf(typename S::I words) {
  return S::FromBits(S::template Shl<16>(words));
}
template <class S>
FLOTILLA_INLINE typename S::F OddHalf(typename S::I words) {
  return S::FromBits(S::IAnd(words, S::ISet1(static_cast<int32_t>(0xFFFF0000u))));
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
FLOTILLA_INLINE void WriteBf16Key(const float* k, int dim, int slot, std::byte* keys) {
  for (int d = 0; d < dim; d += 16) {
    // Dimensions (2i, 2i + 1) of this token are one 32-bit word of row i.
    alignas(64) uint32_t words[16];
    S::IStore(words, ToBf16<S>(S::Load(k + d)));
    uint32_t* at = reinterpret_cast<uint32_t*>(keys) + d / 2 * kKvRecordTokens + slot;
    FLOTILLA_UNROLL
    for (int i = 0; i < 8; ++i) at[i * kKvRecordTokens] = words[2 * i] | words[2 * i + 1] << 16;
  }
}

template <class S>
FLOTILLA_INLINE void WriteBf16Value(const float* v, int dim, int slot, std::byte* values) {
  values += slot / 2 * dim * 4;
  for (int d = 0; d < dim; d += 16) {
    // An even token is the low half of its words and clears the high one.
    const auto encoded = ToBf16<S>(S::Load(v + d));
    if (slot % 2 == 0) {
      S::IStore(values + d * 4, encoded);
    } else {
      const auto partner = S::IAnd(S::ILoad(values + d * 4), S::ISet1(0xFFFF));
      S::IStore(values + d * 4, S::IOr(partner, S::template Shl<16>(encoded)));
    }
  }
}

// Writes K of `count` tokens of one block. Four tokens are transposed in registers, four dimensions
// at a time. Single tokens, as in decode, are scattered.
inline void WriteF32Keys(const float* k, int64_t stride, int count, int dim, int slot,
                         std::byte* record) {
  float* keys = reinterpret_cast<float*>(record) + slot;
  int token = 0;
  for (; token + 4 <= count; token += 4) {
    const float* source = k + token * stride;
    for (int d = 0; d < dim; d += 4) {
      __m128 a = _mm_loadu_ps(source + d);
      __m128 b = _mm_loadu_ps(source + stride + d);
      __m128 c = _mm_loadu_ps(source + 2 * stride + d);
      __m128 e = _mm_loadu_ps(source + 3 * stride + d);
      _MM_TRANSPOSE4_PS(a, b, c, e);
      float* line = keys + d * kKvRecordTokens + token;
      _mm_storeu_ps(line, a);
      _mm_storeu_ps(line + kKvRecordTokens, b);
      _mm_storeu_ps(line + 2 * kKvRecordTokens, c);
      _mm_storeu_ps(line + 3 * kKvRecordTokens, e);
    }
  }
  for (; token < count; ++token) {
    for (int d = 0; d < dim; ++d) keys[d * kKvRecordTokens + token] = k[token * stride + d];
  }
}

// KvScaleOf, by vectors. `n` is a multiple of 16.
template <class S, KvType kType>
FLOTILLA_INLINE KvScale ScaleOf(const float* x, int n, float given = 0) {
  auto largest = S::IZero();
  auto low = S::Load(x), high = low;
  for (int i = 0; i < n; i += 16) {
    const auto element = S::Load(x + i);
    largest = S::IMax(largest, S::IAnd(S::Bits(element), S::ISet1(0x7FFFFFFF)));
    low = S::Min(element, low);
    high = S::Max(element, high);
  }
  // The extremes of the lanes are those of all elements.
  const auto most = static_cast<uint32_t>(S::IMaxLane(largest));
  if constexpr (kType == KvType::kFp8) {
    const float ends[2] = {BitsFloat(most), 0};
    return KvScaleOf(kType, ends, 2, given);
  } else {
    const float ends[3] = {BitsFloat(most), -S::MaxLane(S::Sub(S::Zero(), low)), S::MaxLane(high)};
    return most >= 0x7F800000u ? KvScale{kKvNan, kKvNan} : KvScaleOf(kType, ends + 1, 2);
  }
}

// The codes of 16 elements from 0 to 255.
template <class S, KvType kType>
FLOTILLA_INLINE typename S::I Codes(typename S::F x, const KvScale& scale) {
  if constexpr (HasCodes(kType)) {
    const float d = Bf16ToFloat(scale.d);
    if (!(d > 0)) return S::IZero();
    const auto c = S::Div(S::Sub(x, S::Set1(Bf16ToFloat(scale.m))), S::Set1(d));
    return S::ToInt(S::Min(S::Max(c, S::Zero()), S::Set1(LargestKvCode(kType))));
  } else if constexpr (kType == KvType::kFp8E5m2) {
    // FloatToE5m2.
    const auto bits = S::Bits(x);
    const auto sign = S::template Shl<7>(S::template Shr<31>(bits));
    const auto positive = S::FromBits(S::IAnd(bits, S::ISet1(0x7FFFFFFF)));
    const auto size = S::Min(positive, S::Set1(65536.0f));
    const auto units = S::IAnd(S::Bits(S::Add(size, S::Set1(0x1p7f))), S::ISet1(7));
    const auto odd = S::IAnd(S::template Shr<21>(S::Bits(size)), S::ISet1(1));
    const auto rounded = S::IAdd(S::Bits(size), S::IAdd(S::ISet1(0xFFFFF), odd));
    const auto normal = S::ISub(S::template Shr<21>(rounded), S::ISet1(112 << 2));
    const auto number = S::ISelect(S::Gt(S::Set1(0x1p-14f), size), units, normal);
    return S::IOr(sign, S::ISelect(S::Gt(S::Set1(61440.0f), positive), number, S::ISet1(0x7E)));
  } else {
    // FloatToFp8.
    const float d = Bf16ToFloat(scale.d);
    if (!(d > 0)) return S::IZero();
    const auto bits = S::Bits(S::Div(x, S::Set1(d)));
    const auto sign = S::template Shl<7>(S::template Shr<31>(bits));
    const auto size = S::Min(S::FromBits(S::IAnd(bits, S::ISet1(0x7FFFFFFF))), S::Set1(448.0f));
    const auto units = S::IAnd(S::Bits(S::Add(size, S::Set1(0x1p14f))), S::ISet1(0xF));
    const auto odd = S::IAnd(S::template Shr<20>(S::Bits(size)), S::ISet1(1));
    const auto rounded = S::IAdd(S::Bits(size), S::IAdd(S::ISet1(0x7FFFF), odd));
    const auto normal = S::ISub(S::template Shr<20>(rounded), S::ISet1(120 << 3));
    return S::IOr(sign, S::ISelect(S::Gt(S::Set1(0x1p-6f), size), units, normal));
  }
}

// Stores 16 elements in a row.
template <class S, KvType kType>
FLOTILLA_INLINE void StoreElements(typename S::F x, const KvScale& scale, std::byte* out) {
  if constexpr (kType == KvType::kF32) {
    S::Store(reinterpret_cast<float*>(out), x);
  } else if constexpr (kType == KvType::kF16) {
    // As KvEncode: what does not fit is no number.
    const auto size = S::FromBits(S::IAnd(S::Bits(x), S::ISet1(0x7FFFFFFF)));
    const auto nan = S::FromBits(S::ISet1(0x7FC00000));
    S::StoreHalf(out, S::Select(S::Gt(S::Set1(65520.0f), size), x, nan));
  } else if constexpr (KvElementBits(kType) == 8) {
    S::StoreBytes(out, Codes<S, kType>(x, scale));
  } else {
    alignas(64) uint32_t codes[16];
    S::IStore(codes, Codes<S, kType>(x, scale));
    std::conditional_t<kType == KvType::kInt4, uint64_t, uint32_t> word = 0;
    FLOTILLA_UNROLL
    for (int i = 0; i < 16; ++i) word |= decltype(word){codes[i]} << KvCodeBit(kType, i);
    std::memcpy(out, &word, sizeof word);
  }
}

template <KvType kType>
FLOTILLA_INLINE void StoreScale(const KvScale& scale, int slot, std::byte* scales) {
  auto* at = reinterpret_cast<uint16_t*>(scales) + slot;
  if constexpr (HasScales(kType)) at[0] = scale.d;
  if constexpr (HasCodes(kType)) at[kKvRecordTokens] = scale.m;
}

// K of consecutive tokens of one block, from `slot` on; `given` as in KvScaleOf.
template <class S, KvType kType>
void WriteKeys(const float* k, int64_t stride, int count, int dim, int slot, float given,
               std::byte* keys, std::byte* scales) {
  if constexpr (kType == KvType::kF32) {
    WriteF32Keys(k, stride, count, dim, slot, keys);
    return;
  }
  for (int token = slot; token < slot + count; ++token, k += stride) {
    if constexpr (kType == KvType::kBf16) {
      WriteBf16Key<S>(k, dim, token, keys);
    } else {
      using Element = std::conditional_t<KvElementBits(kType) == 8, uint8_t, uint16_t>;
      KvScale scale;
      if constexpr (HasScales(kType)) scale = ScaleOf<S, kType>(k, dim, given);
      StoreScale<kType>(scale, token, scales);
      for (int d = 0; d < dim; d += 16) {
        alignas(64) Element elements[16];
        StoreElements<S, kType>(S::Load(k + d), scale, reinterpret_cast<std::byte*>(elements));
        Element* at = reinterpret_cast<Element*>(keys) + d * kKvRecordTokens + token;
        FLOTILLA_UNROLL
        for (int i = 0; i < 16; ++i) at[i * kKvRecordTokens] = elements[i];
      }
    }
  }
}

template <class S, KvType kType>
void WriteValues(const float* v, int64_t stride, int count, int dim, int slot, float given,
                 std::byte* values, std::byte* scales) {
  for (int token = slot; token < slot + count; ++token, v += stride) {
    if constexpr (kType == KvType::kBf16) {
      WriteBf16Value<S>(v, dim, token, values);
    } else {
      const int span = KvScaleSpan(kType, dim);
      for (int begin = 0; begin < dim; begin += span) {
        const int end = begin + span < dim ? begin + span : dim;
        KvScale scale;
        if constexpr (HasScales(kType)) {
          scale = ScaleOf<S, kType>(v + begin, end - begin, given);
        }
        StoreScale<kType>(scale, token, scales + begin / span * KvGroupScaleBytes(kType));
        for (int d = begin; d < end; d += 16) {
          StoreElements<S, kType>(S::Load(v + d), scale,
                                  values + KvBytes(kType, int64_t{token} * dim + d));
        }
      }
    }
  }
}

// Calls visitor.operator()<kType>().
template <class Visitor>
FLOTILLA_INLINE void VisitType(KvType type, const Visitor& visitor) {
  switch (type) {
    case KvType::kBf16:
      return visitor.template operator()<KvType::kBf16>();
    case KvType::kF32:
      return visitor.template operator()<KvType::kF32>();
    case KvType::kF16:
      return visitor.template operator()<KvType::kF16>();
    case KvType::kInt8:
      return visitor.template operator()<KvType::kInt8>();
    case KvType::kFp8:
      return visitor.template operator()<KvType::kFp8>();
    case KvType::kFp8E5m2:
      return visitor.template operator()<KvType::kFp8E5m2>();
    case KvType::kInt4:
      return visitor.template operator()<KvType::kInt4>();
    case KvType::kInt2:
      return visitor.template operator()<KvType::kInt2>();
  }
}
// The same for types that encode tokens one by one, and for those that do so by runs. Other types
// have no effect.
template <class Visitor>
FLOTILLA_INLINE void VisitTokenType(KvType type, const Visitor& visitor) {
  VisitType(type, [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
    if constexpr (!HasRuns(kType)) visitor.template operator()<kType>();
  });
}
template <class Visitor>
FLOTILLA_INLINE void VisitRunType(KvType type, const Visitor& visitor) {
  VisitType(type, [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
    if constexpr (HasRuns(kType)) visitor.template operator()<kType>();
  });
}

// K of position 0, as open runs have it; V follows.
FLOTILLA_INLINE std::byte* FirstKey(const KvView& open, int head) {
  return open.base + open.block_table[0] * open.block_stride + head * open.head_stride +
         KvFirstOffset(open.dims);
}
FLOTILLA_INLINE std::byte* FirstValue(const KvView& open, int head) {
  return FirstKey(open, head) + KvBytes(KvType::kBf16, open.dims.key);
}

template <class S>
FLOTILLA_INLINE void StoreFirst(const float* x, int dim, std::byte* at) {
  for (int d = 0; d < dim; d += 16) {
    alignas(64) uint32_t words[16];
    S::IStore(words, ToBf16<S>(S::Load(x + d)));
    uint16_t halves[16];
    FLOTILLA_UNROLL
    for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(words[i]);
    std::memcpy(at + d * 2, halves, sizeof halves);
  }
}

template <class S>
void KvWrite(const KvWriteArgs& args, int token_begin, int token_end) {
  const KvDims& dims = args.cache.dims;
  const KvView& keys = HasRuns(args.cache.format.key) ? args.open : args.cache;
  const KvView& values = HasRuns(args.cache.format.value) ? args.open : args.cache;
  const int64_t key_bytes = KvRecordBytes(keys.format, keys.dims);
  const int64_t value_bytes = KvRecordBytes(values.format, values.dims);
  // Tokens that share a record.
  for (int token = token_begin; token < token_end;) {
    const int position = args.first_position + token;
    const int slot = position % kKvRecordTokens;
    const int room = kKvRecordTokens - slot;
    const int count = token_end - token < room ? token_end - token : room;
    for (int head = 0; head < args.heads; ++head) {
      const float* k = args.k + token * args.token_stride + head * dims.key;
      std::byte* record = KvRecord(keys, key_bytes, head, position);
      VisitTokenType(keys.format.key, [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
        WriteKeys<S, kType>(k, args.token_stride, count, dims.key, slot, args.key_scale, record,
                            record + KvKeyScaleOffset(keys.format, keys.dims));
      });
      const bool has_first = args.open.base != nullptr && position == 0;
      if (has_first) StoreFirst<S>(k, args.open.dims.key, FirstKey(args.open, head));
      if (dims.prefix) continue;
      const float* v = args.v + token * args.token_stride + head * dims.value;
      record = KvRecord(values, value_bytes, head, position);
      VisitTokenType(values.format.value, [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
        WriteValues<S, kType>(v, args.token_stride, count, dims.value, slot, args.value_scale,
                              record + KvValueOffset(values.format, values.dims),
                              record + KvValueScaleOffset(values.format, values.dims));
      });
      if (has_first) StoreFirst<S>(v, args.open.dims.value, FirstValue(args.open, head));
    }
    token += count;
  }
}

// K of a run, which may be that of position 0. Both have its four records, `from_bytes` and
// `to_bytes` long.
template <class S, KvType kType>
void SealKeys(const std::byte* from, int64_t from_bytes, int dim, bool is_first, std::byte* to,
              int64_t to_bytes) {
  auto* scales = reinterpret_cast<uint16_t*>(to + kKvRunRecords * to_bytes);
  for (int d = 0; d < dim; ++d) {
    alignas(64) float tokens[kKvRunTokens];
    for (int i = 0; i < kKvRunRecords; ++i) {
      const auto words = S::ILoad(from + i * from_bytes + d / 2 * kKvRecordTokens * 4);
      S::Store(tokens + i * kKvRecordTokens, d % 2 == 0 ? EvenHalf<S>(words) : OddHalf<S>(words));
    }
    if (is_first) tokens[0] = tokens[1];
    const KvScale scale = ScaleOf<S, kType>(tokens, kKvRunTokens);
    scales[d] = scale.d;
    scales[dim + d] = scale.m;
    for (int i = 0; i < kKvRunRecords; ++i) {
      StoreElements<S, kType>(S::Load(tokens + i * kKvRecordTokens), scale,
                              to + i * to_bytes + KvBytes(kType, d * kKvRecordTokens));
    }
  }
}

// V of the 16 tokens of a record.
template <class S, KvType kType>
void SealValues(const std::byte* from, int dim, std::byte* values, std::byte* scales) {
  for (int slot = 0; slot < kKvRecordTokens; ++slot) {
    alignas(64) float token[kMaxHeadDim];
    for (int d = 0; d < dim; d += 16) {
      const auto words = S::ILoad(from + (slot / 2 * dim + d) * 4);
      S::Store(token + d, slot % 2 == 0 ? EvenHalf<S>(words) : OddHalf<S>(words));
    }
    WriteValues<S, kType>(token, 0, 1, dim, slot, /*given=*/0, values, scales);
  }
}

template <class S>
void KvSeal(const KvSealArgs& args, int head_begin, int head_end) {
  const KvFormat& format = args.cache.format;
  const KvDims& dims = args.cache.dims;
  const int64_t from_bytes = KvRecordBytes(args.open.format, args.open.dims);
  const int64_t to_bytes = KvRecordBytes(format, dims);
  for (int head = head_begin; head < head_end; ++head) {
    const std::byte* from = KvHead(args.open, head, args.run * kKvRunTokens);
    std::byte* to = KvHead(args.cache, head, args.run * kKvRunTokens);
    VisitRunType(format.key, [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
      SealKeys<S, kType>(from, from_bytes, dims.key, args.run == 0, to, to_bytes);
    });
    VisitRunType(format.value, [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
      for (int i = 0; i < kKvRunRecords; ++i) {
        SealValues<S, kType>(
            from + i * from_bytes + KvValueOffset(args.open.format, args.open.dims), dims.value,
            to + i * to_bytes + KvValueOffset(format, dims),
            to + i * to_bytes + KvValueScaleOffset(format, dims));
      }
    });
  }
}

}  // namespace flotilla::kernels
