// Layout of the paged KV cache on CPU, shared by the kernels and by the worker
// that owns the memory. Pure constants and arithmetic.
//
// A block holds 16 tokens. Per layer and KV head it has one 64-byte aligned
// record, K first, then V:
//   bf16  K [key/2][16 tokens][2]   V [8 token pairs][value][2]
//   fp32  K [key][16 tokens]        V [16 tokens][value]
// With this layout one 64-byte load of K is sixteen keys, and one of V sixteen dimensions.
//
// V of a token may be the first elements of its K (the latent of multi-head latent attention,
// arXiv 2405.04434). Then the record is K alone.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace flotilla::kernels {

inline constexpr int kKvBlockTokens = 16;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxLatentDim = 576;  // DeepSeek V3: a latent of 512, 64 with positions

enum class KvFormat : uint8_t { kBf16, kF32 };

// As flags, metrics and the numerics id have it.
constexpr std::string_view KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kBf16:
      return "bf16";
    case KvFormat::kF32:
      return "fp32";
  }
  return "";
}

constexpr int64_t KvElementBytes(KvFormat format) { return format == KvFormat::kBf16 ? 2 : 4; }

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

// Bytes of one record (K and V of 16 tokens of one layer and KV head).
constexpr int64_t KvRecordBytes(KvFormat format, const KvDims& dims) {
  return KvElementBytes(format) * kKvBlockTokens * dims.stored();
}

// Byte offset of V inside a record; 0 with a prefix.
constexpr int64_t KvValueOffset(KvFormat format, const KvDims& dims) {
  return dims.prefix ? 0 : KvElementBytes(format) * kKvBlockTokens * dims.key;
}

// UNIMPLEMENTED: kernels cannot attend with such K and V.
absl::Status CheckKvDims(const KvDims& dims);

// Element index (not bytes) inside K or V of token `slot` (0..15), dimension d.
constexpr int64_t KvKeyIndex(KvFormat format, int slot, int d) {
  return format == KvFormat::kBf16 ? (d / 2 * kKvBlockTokens + slot) * 2 + d % 2
                                   : d * kKvBlockTokens + slot;
}
constexpr int64_t KvValueIndex(KvFormat format, int dim, int slot, int d) {
  return format == KvFormat::kBf16 ? (static_cast<int64_t>(slot) / 2 * dim + d) * 2 + slot % 2
                                   : static_cast<int64_t>(slot) * dim + d;
}

}  // namespace flotilla::kernels
