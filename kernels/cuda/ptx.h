// The instructions of GPUs that kernels use by name, each with its twin for CPUs. The twins are
// compared with the hardware by scripts/gpu_check: the simulation of kernels stands on them.
//
// A tile of a product has 16 rows of a, 8 columns of b and 32 k. Lane l of the warp has, with
// g = l / 4 and t = l % 4, four bytes of k in each word:
//   a[0], a[1]   rows g and g + 8, k = 4 t ..        a[2], a[3]   the same rows, k = 16 + 4 t ..
//   b[0], b[1]   column g, k = 4 t .. and 16 + 4 t ..
//   d[0], d[1]   row g, columns 2 t and 2 t + 1      d[2], d[3]   row g + 8, the same columns
// (PTX ISA 9.0, "Matrix Fragments for mma.m16n8k32".)
#pragma once

#include "kernels/cuda/simt.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {

// d += a * b of a warp, exact: bytes of b are signed, and those of a signed (MultiplyS8) or not
// (MultiplyU8).
// BytePermute: byte i of the result is byte (selector >> 4 i & 7) of the eight bytes of `low`, then
// `high`.
#if defined(FLOTILLA_SIMULATED)

struct TileOperands {
  uint32_t a[4];
  uint32_t b[2];
};

template <typename Byte>
void MultiplyBytes(Word word, int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  TileOperands own;
  for (int i = 0; i < 4; ++i) own.a[i] = a[i];
  for (int i = 0; i < 2; ++i) own.b[i] = b[i];
  const TileOperands* const lanes = Machine::Current().Gather(word, own);
  const int row = Thread() % kWarp / 4, column = Thread() % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    uint32_t sum = static_cast<uint32_t>(d[i]);  // which may wrap
    for (int k = 0; k < 32; ++k) {
      const int quarter = k % 16 / 4, shift = k % 4 * 8;
      const uint32_t left = lanes[row * 4 + quarter].a[k / 16 * 2 + i / 2] >> shift;
      const uint32_t right = lanes[(column + i % 2) * 4 + quarter].b[k / 16] >> shift;
      const int product = static_cast<Byte>(left) * static_cast<int8_t>(right);
      sum += static_cast<uint32_t>(product);
    }
    d[i] = static_cast<int32_t>(sum);
  }
}

FLOTILLA_DEVICE void MultiplyS8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MultiplyBytes<int8_t>(Word::kMultiplyS8, d, a, b);
}
FLOTILLA_DEVICE void MultiplyU8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MultiplyBytes<uint8_t>(Word::kMultiplyU8, d, a, b);
}

FLOTILLA_DEVICE uint32_t BytePermute(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const auto byte = static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF);
    result |= byte << 8 * i;
  }
  return result;
}

#else

FLOTILLA_DEVICE void MultiplyS8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FLOTILLA_DEVICE void MultiplyU8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

FLOTILLA_DEVICE uint32_t BytePermute(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}

#endif

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
