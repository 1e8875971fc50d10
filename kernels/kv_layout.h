// Layout of the paged KV cache on CPU, shared by the kernels and by the worker
// that owns the memory. Pure constants and arithmetic.
//
// A block holds 16 tokens. Per layer and KV head it has one 64-byte aligned record: K, then V, then
// the scales of K and those of V, filled up to 64 bytes:
//   bf16             K [key/2][16 tokens][2]   V [8 token pairs][value][2]
//   fp32, fp16       K [key][16 tokens]        V [16 tokens][value]
//   int8, fp8        the same in bytes; scales: d [16 tokens], of int8 also m [16 tokens], bf16
//   fp8_e5m2         the same in bytes, without scales
//   int4, int2                                 V [16 tokens][value / 16], 16 codes in a word of 64
//                    or 32 bits (KvCodeBit); scales: d [16 tokens], m [16 tokens] for each 64
//                    elements
// With this layout one load of K is sixteen keys, and one of V sixteen dimensions. What a number
// means is in kernels/kv_codec.h. K and V may have different types.
//
// V of a token may be the first elements of its K (the latent of multi-head latent attention,
// arXiv 2405.04434). Then the record is K alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace flotilla::kernels {

inline constexpr int kKvBlockTokens = 16;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxLatentDim = 576;  // DeepSeek V3: a latent of 512, 64 with positions

enum class KvType : uint8_t { kBf16, kF32, kF16, kInt8, kFp8, kFp8E5m2, kInt4, kInt2 };

inline constexpr KvType kAllKvTypes[] = {KvType::kF32,  KvType::kF16,     KvType::kBf16,
                                         KvType::kFp8,  KvType::kFp8E5m2, KvType::kInt8,
                                         KvType::kInt4, KvType::kInt2};

// K of these few bits would need scales for each element of a head, over many tokens (Liu et al.,
// KIVI, 2024), so they are types of V.
constexpr bool IsKeyType(KvType type) { return type != KvType::kInt4 && type != KvType::kInt2; }

// As flags, metrics and the numerics id have it.
constexpr std::string_view KvTypeName(KvType type) {
  switch (type) {
    case KvType::kBf16:
      return "bf16";
    case KvType::kF32:
      return "fp32";
    case KvType::kF16:
      return "fp16";
    case KvType::kInt8:
      return "int8";
    case KvType::kFp8:
      return "fp8";
    case KvType::kFp8E5m2:
      return "fp8_e5m2";
    case KvType::kInt4:
      return "int4";
    case KvType::kInt2:
      return "int2";
  }
  return "";
}

// Those of K and of V.
struct KvFormat {
  KvType key = KvType::kBf16;
  KvType value = KvType::kBf16;

  static const KvFormat kBf16, kF32;
  static constexpr KvFormat Both(KvType type) { return {.key = type, .value = type}; }
  // Both, or K of int8 beside a type that only V has.
  static constexpr KvFormat With(KvType type) {
    return {.key = IsKeyType(type) ? type : KvType::kInt8, .value = type};
  }

  bool operator==(const KvFormat&) const = default;
};
inline constexpr KvFormat KvFormat::kBf16 = KvFormat::Both(KvType::kBf16);
inline constexpr KvFormat KvFormat::kF32 = KvFormat::Both(KvType::kF32);

// E.g. "bf16", or "int8, V fp16".
inline std::string KvFormatName(const KvFormat& format) {
  std::string name(KvTypeName(format.key));
  if (format.value == format.key) return name;
  return name + ", V " + std::string(KvTypeName(format.value));
}

constexpr int KvElementBits(KvType type) {
  switch (type) {
    case KvType::kF32:
      return 32;
    case KvType::kF16:
    case KvType::kBf16:
      return 16;
    case KvType::kInt8:
    case KvType::kFp8:
    case KvType::kFp8E5m2:
      return 8;
    case KvType::kInt4:
      return 4;
    case KvType::kInt2:
      return 2;
  }
  return 0;
}
// Of so many elements, a multiple of 16.
constexpr int64_t KvBytes(KvType type, int64_t elements) {
  return elements * KvElementBits(type) / 8;
}

// Whether elements are codes of a span, from 0 on.
constexpr bool HasCodes(KvType type) {
  return type == KvType::kInt8 || type == KvType::kInt4 || type == KvType::kInt2;
}
constexpr bool HasScales(KvType type) { return HasCodes(type) || type == KvType::kFp8; }
// The elements of a token that have a scale, and a minimum.
constexpr int KvScaleSpan(KvType type, int dim) { return IsKeyType(type) ? dim : 64; }
// Those of 16 tokens.
constexpr int64_t KvGroupScaleBytes(KvType type) {
  return (HasCodes(type) ? 4 : HasScales(type) ? 2 : 0) * kKvBlockTokens;
}
// Of the scales of a record, of tokens of `dim` elements.
constexpr int64_t KvScaleBytes(KvType type, int dim) {
  const int span = KvScaleSpan(type, dim);
  return dim == 0 ? 0 : KvGroupScaleBytes(type) * ((dim + span - 1) / span);
}
// The bit of code i of 16 that lie in a word of 64 (int4) or 32 bits (int2). So vectors of 32-bit
// lanes get them by one shift of lane i: of int4, odd codes are in the upper half.
constexpr int KvCodeBit(KvType type, int i) {
  return type == KvType::kInt4 ? i % 2 * 32 + i / 2 * 4 : i * 2;
}

// The elements of a token's K and V, for one layer and KV head: multiples of 16, at most
// kMaxHeadDim, or with a prefix kMaxLatentDim.
struct KvDims {
  int key = 0;
  int value = 0;
  bool prefix = false;  // V is the first `value` elements of K, and has no memory of its own

  // K and V of equal length, as most models have them.
  static constexpr KvDims Equal(int dim) { return {.key = dim, .value = dim}; }
  constexpr int stored() const { return prefix ? key : key + value; }

  bool operator==(const KvDims&) const = default;
};

// Byte offsets inside a record: of V (0 with a prefix), and of the scales of K and of V.
constexpr int64_t KvValueOffset(const KvFormat& format, const KvDims& dims) {
  return dims.prefix ? 0 : KvBytes(format.key, int64_t{kKvBlockTokens} * dims.key);
}
constexpr int64_t KvKeyScaleOffset(const KvFormat& format, const KvDims& dims) {
  return KvBytes(format.key, int64_t{kKvBlockTokens} * dims.key) +
         (dims.prefix ? 0 : KvBytes(format.value, int64_t{kKvBlockTokens} * dims.value));
}
constexpr int64_t KvValueScaleOffset(const KvFormat& format, const KvDims& dims) {
  return KvKeyScaleOffset(format, dims) + (dims.prefix ? 0 : KvScaleBytes(format.key, dims.key));
}

// Bytes of one record (K and V of 16 tokens of one layer and KV head).
constexpr int64_t KvRecordBytes(const KvFormat& format, const KvDims& dims) {
  const int64_t last =
      dims.prefix ? KvScaleBytes(format.key, dims.key) : KvScaleBytes(format.value, dims.value);
  return (KvValueScaleOffset(format, dims) + last + 63) / 64 * 64;
}

// UNIMPLEMENTED: kernels cannot attend with such K and V.
absl::Status CheckKvDims(const KvDims& dims);

// Element index (not bytes) inside K or V of token `slot` (0..15), dimension d.
constexpr int64_t KvKeyIndex(KvType type, int slot, int d) {
  return type == KvType::kBf16 ? (d / 2 * kKvBlockTokens + slot) * 2 + d % 2
                               : d * kKvBlockTokens + slot;
}
constexpr int64_t KvValueIndex(KvType type, int dim, int slot, int d) {
  return type == KvType::kBf16 ? (static_cast<int64_t>(slot) / 2 * dim + d) * 2 + slot % 2
                               : static_cast<int64_t>(slot) * dim + d;
}

}  // namespace flotilla::kernels
