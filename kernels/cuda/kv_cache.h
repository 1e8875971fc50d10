// Where K and V of a token lie, and what their numbers are (ops.h, KvView).
#pragma once

#include "kernels/cuda/simt.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {

// The types of numbers in the cache. Eight and two lie at multiples of their size.
struct F32Kv {
  using Number = float;
  static FLOTILLA_DEVICE Number Store(float x) { return x; }
  static FLOTILLA_DEVICE void LoadEight(const Number* from, float (&x)[8]) {
    FLOTILLA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Quad quad = LoadQuad(from + 4 * half);
      x[4 * half] = BitsFloat(quad.x);
      x[4 * half + 1] = BitsFloat(quad.y);
      x[4 * half + 2] = BitsFloat(quad.z);
      x[4 * half + 3] = BitsFloat(quad.w);
    }
  }
  static FLOTILLA_DEVICE void LoadTwo(const Number* from, float (&x)[2]) {
    const Pair pair = LoadPair(from);
    x[0] = BitsFloat(pair.x);
    x[1] = BitsFloat(pair.y);
  }
};
struct Bf16Kv {
  using Number = uint16_t;
  static FLOTILLA_DEVICE Number Store(float x) { return FloatToBf16(x); }
  static FLOTILLA_DEVICE void Widen(uint32_t two, float* x) {
    x[0] = BitsFloat(two << 16);
    x[1] = BitsFloat(two & 0xFFFF0000u);
  }
  static FLOTILLA_DEVICE void LoadEight(const Number* from, float (&x)[8]) {
    const Quad quad = LoadQuad(from);
    Widen(quad.x, x);
    Widen(quad.y, x + 2);
    Widen(quad.z, x + 4);
    Widen(quad.w, x + 6);
  }
  static FLOTILLA_DEVICE void LoadTwo(const Number* from, float (&x)[2]) {
    Widen(Load<uint32_t>(from), x);
  }
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
