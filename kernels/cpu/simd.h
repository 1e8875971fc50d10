// The operations of the vector kernels. A kernel is a template over an instruction path S
// (Avx2 or Avx512, in simd_avx2.h and simd_avx512.h), which offers 16 lanes whatever the
// register width:
//   F   16 fp32      I   16 int32 (or 32 int16 for the dot products)      M   mask
// The same operations on the same lanes in the same order give the same bits on
// every path. Only tile sizes differ, and no result depends on them.
//
// Only files compiled with the path's -m flags include these headers.
// Kernels are templates over S and everything below is forced inline, so that no
// function of one path can be linked into another.
#pragma once

#include "kernels/host_device.h"

#define FLOTILLA_INLINE_LAMBDA __attribute__((always_inline))
