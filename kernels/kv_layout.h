// Layout of the paged KV cache on CPU, shared by the kernels and by the worker
// that owns the memory. Pure constants and arithmetic.
//
// A block holds 16 tokens. Per layer and KV head it has one 64-byte aligned
// record, K first, then V:
//   bf16  K [dim/2][16 tokens][2]   V [8 token pairs][dim][2]
//   fp32  K [dim][16 tokens]        V [16 tokens][dim]
// With this layout one 64-byte load of K is sixteen keys, and one of V sixteen dimensions.
// `dim` is a multiple of 16, at most kMaxHeadDim.
//
// With a value prefix, V of a token is the first `value_prefix` elements of its K (the latent of
// multi-head latent attention, arXiv 2405.04434): the record is K alone, and `dim` is at most
// kMaxLatentDim. The prefix is a multiple of 16, too.
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

// Bytes of one record (K and V of 16 tokens of one layer and KV head).
constexpr int64_t KvRecordBytes(KvFormat format, int dim, int value_prefix = 0) {
  return (value_prefix > 0 ? 1 : 2) * KvElementBytes(format) * kKvBlockTokens * dim;
}

// Byte offset of V inside a record that has it.
constexpr int64_t KvValueOffset(KvFormat format, int dim) { return KvRecordBytes(format, dim) / 2; }

// UNIMPLEMENTED: kernels cannot attend with K of `dim` elements and such a prefix.
absl::Status CheckKvDims(int dim, int value_prefix);

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
