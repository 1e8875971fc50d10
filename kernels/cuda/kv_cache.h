// Where K and V of a token lie, and what their numbers are (ops.h, KvView).
#pragma once

#include "kernels/cuda/simt.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {

// The types of numbers in the cache.
struct F32Kv {
  using Number = float;
  static FLOTILLA_DEVICE float Load(Number x) { return x; }
  static FLOTILLA_DEVICE Number Store(float x) { return x; }
};
struct Bf16Kv {
  using Number = uint16_t;
  static FLOTILLA_DEVICE float Load(Number x) { return Bf16ToFloat(x); }
  static FLOTILLA_DEVICE Number Store(float x) { return FloatToBf16(x); }
};

// K of the token at `position`; V lies kKvRecordTokens * dim numbers behind it.
template <class Kv>
FLOTILLA_DEVICE typename Kv::Number* KeyOf(const KvView& cache, int sequence, int head,
                                           int position) {
  const int64_t table = cache.begins[sequence * cache.begin_stride];
  const int32_t block = cache.blocks[table + position / kKvRecordTokens];
  std::byte* const record = cache.base + block * cache.block_stride + head * cache.head_stride;
  return reinterpret_cast<typename Kv::Number*>(record) + position % kKvRecordTokens * cache.dim;
}
FLOTILLA_DEVICE int ToValue(const KvView& cache) { return kKvRecordTokens * cache.dim; }

// Calls visitor.operator()<Kv>() for the type, and returns what it does.
template <class Visitor>
int VisitKv(KvType type, const Visitor& visitor) {
  return type == KvType::kF32 ? visitor.template operator()<F32Kv>()
                              : visitor.template operator()<Bf16Kv>();
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
