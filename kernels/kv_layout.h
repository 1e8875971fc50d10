// Layout of the paged KV cache on CPU, shared by the kernels and by the worker
// that owns the memory. Pure constants and arithmetic.
//
// A record is 64-byte aligned and has K and V of 16 tokens of one layer and KV head: K, then V,
// then the scales of K and those of V, filled up to 64 bytes:
//   bf16             K [key/2][16 tokens][2]   V [8 token pairs][value][2]
//   fp32, fp16       K [key][16 tokens]        V [16 tokens][value]
//   int8, fp8        the same in bytes; scales: d [16 tokens], of int8 also m [16 tokens], bf16
//   fp8_e5m2         the same in bytes, without scales
//   int4, int2       K [key][16 tokens], V [16 tokens][value], 16 codes in a word of 64 or 32 bits
//                    (KvCodeBit); scales of V: d [16 tokens], m [16 tokens] for each 64 elements
// With this layout one load of K is sixteen keys, and one of V sixteen dimensions. What a number
// means is in kernels/kv_codec.h. K and V may have different types.
//
// A block has one record of each layer and KV head. Where any layer's K or V is int4 or int2, it
// has four, of a run of 64 tokens, which follow each other; behind them lie the scales of K of the
// run: d [key], m [key], filled up to 64 bytes. K and V of these types are made of whole runs
// (Liu et al., KIVI, 2024): those of a run that is not full are bf16, in an open run, which has the
// four records of the same head, of K or V alone where only one is kept by runs. Behind these lie
// K [key] and V [value] of position 0 of its sequence, in bf16, filled up to 64 bytes: an attention
// sink (Xiao et al., StreamingLLM, 2023), which later runs see instead of its codes.
//
// V of a token may be the first elements of its K (the latent of multi-head latent attention,
// arXiv 2405.04434). Then the record is K alone, and never kept by runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace flotilla::kernels {

inline constexpr int kKvRecordTokens = 16;
inline constexpr int kKvRunTokens = 64;
inline constexpr int kKvRunRecords = kKvRunTokens / kKvRecordTokens;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxLatentDim = 576;  // DeepSeek V3: a latent of 512, 64 with positions

enum class KvType : uint8_t { kBf16, kF32, kF16, kInt8, kFp8, kFp8E5m2, kInt4, kInt2 };

inline constexpr KvType kAllKvTypes[] = {KvType::kF32,  KvType::kF16,     KvType::kBf16,
                                         KvType::kFp8,  KvType::kFp8E5m2, KvType::kInt8,
                                         KvType::kInt4, KvType::kInt2};

// Whether tokens are encoded by runs of 64, and not one by one.
constexpr bool HasRuns(KvType type) { return type == KvType::kInt4 || type == KvType::kInt2; }

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

  constexpr bool has_runs() const { return HasRuns(key) || HasRuns(value); }

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
// The elements of a token's K or V that share a scale, and a minimum. Those of K by runs share
// none.
constexpr int KvScaleSpan(KvType type, int dim) { return HasRuns(type) ? 64 : dim; }
// Those of 16 tokens.
constexpr int64_t KvGroupScaleBytes(KvType type) {
  return (HasCodes(type) ? 4 : HasScales(type) ? 2 : 0) * kKvRecordTokens;
}
// Of the scales of V in a record, of tokens of `dim` elements.
constexpr int64_t KvScaleBytes(KvType type, int dim) {
  const int span = KvScaleSpan(type, dim);
  return dim == 0 ? 0 : KvGroupScaleBytes(type) * ((dim + span - 1) / span);
}
// The same of K.
constexpr int64_t KvKeyScaleBytes(KvType type, int dim) {
  return HasRuns(type) ? 0 : KvScaleBytes(type, dim);
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
  return dims.prefix ? 0 : KvBytes(format.key, int64_t{kKvRecordTokens} * dims.key);
}
constexpr int64_t KvKeyScaleOffset(const KvFormat& format, const KvDims& dims) {
  return KvBytes(format.key, int64_t{kKvRecordTokens} * dims.key) +
         (dims.prefix ? 0 : KvBytes(format.value, int64_t{kKvRecordTokens} * dims.value));
}
constexpr int64_t KvValueScaleOffset(const KvFormat& format, const KvDims& dims) {
  return KvKeyScaleOffset(format, dims) + (dims.prefix ? 0 : KvKeyScaleBytes(format.key, dims.key));
}

// Bytes of one record (K and V of 16 tokens of one layer and KV head).
constexpr int64_t KvRecordBytes(const KvFormat& format, const KvDims& dims) {
  const int64_t last =
      dims.prefix ? KvKeyScaleBytes(format.key, dims.key) : KvScaleBytes(format.value, dims.value);
  return (KvValueScaleOffset(format, dims) + last + 63) / 64 * 64;
}
// Bytes of one layer and KV head in a block of so many tokens, 16 or 64.
constexpr int64_t KvHeadBytes(const KvFormat& format, const KvDims& dims, int block_tokens) {
  const int64_t scales = HasRuns(format.key) ? int64_t{4} * dims.key : 0;
  return block_tokens / kKvRecordTokens * KvRecordBytes(format, dims) + (scales + 63) / 64 * 64;
}

// What an open run has of each token.
constexpr KvDims KvOpenDims(const KvFormat& format, const KvDims& dims) {
  return {.key = HasRuns(format.key) ? dims.key : 0,
          .value = HasRuns(format.value) ? dims.value : 0};
}
// Where K of position 0 lies in an open run of one layer and KV head; V follows it. `open` are what
// the run has of each token.
constexpr int64_t KvFirstOffset(const KvDims& open) {
  return kKvRunRecords * KvRecordBytes(KvFormat::kBf16, open);
}
// Bytes of the open run of one layer and KV head. 0: nothing of it is kept by runs.
constexpr int64_t KvOpenBytes(const KvFormat& format, const KvDims& dims) {
  const KvDims open = KvOpenDims(format, dims);
  return KvFirstOffset(open) + (KvBytes(KvType::kBf16, open.stored()) + 63) / 64 * 64;
}

// UNIMPLEMENTED: kernels cannot attend with such K and V.
absl::Status CheckKvDims(const KvDims& dims);

// Element index (not bytes) inside K or V of token `slot` (0..15), dimension d.
constexpr int64_t KvKeyIndex(KvType type, int slot, int d) {
  return type == KvType::kBf16 ? (d / 2 * kKvRecordTokens + slot) * 2 + d % 2
                               : d * kKvRecordTokens + slot;
}
constexpr int64_t KvValueIndex(KvType type, int dim, int slot, int d) {
  return type == KvType::kBf16 ? (static_cast<int64_t>(slot) / 2 * dim + d) * 2 + slot % 2
                               : static_cast<int64_t>(slot) * dim + d;
}

}  // namespace flotilla::kernels
