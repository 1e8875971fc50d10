// The words that kernels are written in: who a thread is, memory that the threads of a block share,
// and what they do together.
//
// A kernel is compiled twice, from the same source. nvcc makes code for GPUs (namespace `device`),
// and the compiler of CPUs makes code that runs every thread as a fiber (namespace `simulated`,
// with FLOTILLA_SIMULATED; simulated/machine.h). Everything of kernels/cuda/ is in the namespace
// FLOTILLA_SIMT, which is one of the two. Sums are never left to a compiler: nvcc gets -fmad=false,
// and no kernel adds numbers of several threads but in an order that kernels/ops.h states.
//
// Blocks have a multiple of 32 threads. All threads of a block call SyncThreads equally often, and
// all lanes of a warp make the same calls of the words below "warp" in the same order. The
// simulation reports a thread that does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/ops.h"
#include "kernels/host_device.h"

#if defined(FLOTILLA_SIMULATED)
#define FLOTILLA_SIMT simulated
#define FLOTILLA_KERNEL(threads) void
#define FLOTILLA_DEVICE inline
#include "kernels/cuda/simulated/machine.h"
#else
#define FLOTILLA_SIMT device
#define FLOTILLA_KERNEL(threads) __global__ void __launch_bounds__(threads, 1)
#define FLOTILLA_DEVICE __device__ __forceinline__
#include <cuda_runtime.h>
#endif

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {

inline constexpr int kWarp = 32;

// The blocks of a launch.
struct Grid {
  int64_t x = 1;
  int y = 1;
  bool empty() const { return x == 0 || y == 0; }
};

#if defined(FLOTILLA_SIMULATED)

FLOTILLA_DEVICE int Thread() { return Machine::Current().thread(); }
FLOTILLA_DEVICE int BlockX() { return Machine::Current().block_x(); }
FLOTILLA_DEVICE int BlockY() { return Machine::Current().block_y(); }

// The memory that the threads of the block share. It begins with NaN in every number.
template <class T>
FLOTILLA_DEVICE T& Shared() {
  return *reinterpret_cast<T*>(Machine::Current().shared(sizeof(T)));
}

// Waits for all threads of the block. What they wrote before can be read behind it.
FLOTILLA_DEVICE void SyncThreads() { Machine::Current().SyncThreads(); }

// warp: waits for all lanes. What they wrote before can be read behind it, and what they read can
// be written. The other words of a warp do not order memory.
FLOTILLA_DEVICE void SyncWarp() { Machine::Current().Gather(Word::kSyncWarp, 0); }

// warp: the value of the lane whose number differs in `mask`, or is larger by `delta` (the own one
// where there is none).
template <class T>
FLOTILLA_DEVICE T ShuffleXor(T value, int mask) {
  return Machine::Current().Gather(Word::kShuffleXor, value)[Thread() % kWarp ^ mask];
}
template <class T>
FLOTILLA_DEVICE T ShuffleDown(T value, int delta) {
  const T* const lanes = Machine::Current().Gather(Word::kShuffleDown, value);
  const int from = Thread() % kWarp + delta;
  return lanes[from < kWarp ? from : Thread() % kWarp];
}

// A load of a whole T.
template <class T>
FLOTILLA_DEVICE T Load(const void* from) {
  Machine::Current().CheckAlignment(from, alignof(T));
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Runs the kernel on a grid of blocks. Shared: the type of what its threads share.
// Returns 0, or an error of CUDA. The simulation returns kFault, and the stream says what happened.
template <auto kKernel, int kThreads, class SharedMemory, class Args>
int Launch(const char* name, const Grid& grid, const Args& args, Stream stream) {
  if (grid.empty()) return 0;
  const auto run = [](const void* all) { kKernel(*static_cast<const Args*>(all)); };
  return Run({.name = name,
              .blocks_x = grid.x,
              .blocks_y = grid.y,
              .threads = kThreads,
              .shared_bytes = sizeof(SharedMemory),
              .kernel = run,
              .args = &args},
             *static_cast<SimulatedStream*>(stream));
}

#else

FLOTILLA_DEVICE int Thread() { return static_cast<int>(threadIdx.x); }
FLOTILLA_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
FLOTILLA_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }

template <class T>
FLOTILLA_DEVICE T& Shared() {
  extern __shared__ __align__(16) unsigned char shared[];
  return *reinterpret_cast<T*>(shared);
}

FLOTILLA_DEVICE void SyncThreads() { __syncthreads(); }
FLOTILLA_DEVICE void SyncWarp() { __syncwarp(); }

template <class T>
FLOTILLA_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
template <class T>
FLOTILLA_DEVICE T ShuffleDown(T value, int delta) {
  return __shfl_down_sync(0xFFFFFFFFu, value, delta);
}

template <class T>
FLOTILLA_DEVICE T Load(const void* from) {
  return *static_cast<const T*>(from);
}

template <auto kKernel, int kThreads, class SharedMemory, class Args>
int Launch(const char*, const Grid& grid, const Args& args, Stream stream) {
  if (grid.empty()) return 0;
  static_assert(sizeof(SharedMemory) <= 48 * 1024, "more shared memory has to be asked for");
  Args copy = args;
  void* arguments[] = {&copy};
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  return static_cast<int>(cudaLaunchKernel(kKernel, blocks, dim3(kThreads), arguments,
                                           sizeof(SharedMemory),
                                           static_cast<cudaStream_t>(stream)));
}

#endif

// Eight and sixteen bytes, loaded at once from a multiple of their size. The simulation reports
// another address.
struct alignas(8) Pair {
  uint32_t x, y;
};
struct alignas(16) Quad {
  uint32_t x, y, z, w;
};
FLOTILLA_DEVICE Pair LoadPair(const void* from) { return Load<Pair>(from); }
FLOTILLA_DEVICE Quad LoadQuad(const void* from) { return Load<Quad>(from); }

// Of a kernel whose threads share nothing.
struct NothingShared {};

FLOTILLA_DEVICE int LaneOf(int thread) { return thread % kWarp; }
FLOTILLA_DEVICE int WarpOf(int thread) { return thread / kWarp; }

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
