// What formulas are declared with that CPUs and GPUs share. A compiler of CUDA makes both of such a
// function, and every other compiler just the first. There is no second copy of a formula.
#pragma once

#if defined(__CUDACC__)
#define FLOTILLA_HOST_DEVICE __host__ __device__
#define FLOTILLA_INLINE __host__ __device__ __forceinline__
#else
#define FLOTILLA_HOST_DEVICE
#define FLOTILLA_INLINE inline __attribute__((always_inline))
#endif

// Lets the next loop do `times` rounds at once, where a GPU runs it.
#if defined(__CUDACC__)
#define FLOTILLA_PRAGMA(text) _Pragma(#text)
#define FLOTILLA_UNROLL_BY(times) FLOTILLA_PRAGMA(unroll times)
#else
#define FLOTILLA_UNROLL_BY(times)
#endif

// Unrolls the next loop (constant bounds) so that its arrays live in registers.
#if defined(__clang__) || defined(__CUDACC__)
#define FLOTILLA_UNROLL _Pragma("unroll")
#else
#define FLOTILLA_UNROLL _Pragma("GCC unroll 16")
#endif
