// ThreadPool: the compute threads of one rank. The calling thread takes part, so a pool
// of one starts no thread.
//
// The executor owns the pool; one thread at a time may call it. A step is a few hundred
// short phases. Each thread has its own part of a phase, the same part every time, so
// that it finds its part of a matrix in its cache. A thread that is done takes pieces of
// other threads' parts, so a thread that the system has suspended delays nobody. Waits
// spin for about one wake-up (30 us) and then sleep on a futex; with more threads than
// CPUs they sleep at once. An idle pool uses no CPU. Results must not depend on which
// thread does what: no op reduces across a cut.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace flotilla::worker {

class ThreadPool {
 public:
  // `threads` in 1 .. 1,024 (clamped), the caller's included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls fn with ranges that cover [0, count) once, a few per thread, and returns when
  // all calls have returned. All calls see what was written before, and the caller then
  // sees what they wrote.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t begin, int64_t end)> fn);

  // Calls fn(i) once for every i below `count`, each on the next free thread. Use it for
  // items of unequal cost, the most expensive first.
  void ParallelItems(int64_t count, absl::FunctionRef<void(int64_t item)> fn);

 private:
  // The pieces [next, end) of a phase that no thread has taken. The phase's generation is
  // stored with them, so that a thread that comes late takes nothing of a later phase.
  struct alignas(64) Part {
    std::atomic<uint64_t> word{0};  // generation 32, next 16, end 16
  };

  void WorkerLoop(int thread);
  // Runs all pieces. Each thread has a part of them of its own; with `shared`, all threads
  // take pieces in ascending order.
  void RunPhase(int pieces, bool shared, absl::FunctionRef<void(int64_t piece)> fn);
  // Takes and runs pieces of phase `generation` until none is left.
  void RunPieces(int thread, uint32_t generation);
  // Returns once `word` differs from `old`.
  void WaitWhile(const std::atomic<uint32_t>& word, uint32_t old) const;

  const int threads_;
  const bool spin_;

  std::vector<Part> parts_;  // [threads]
  // These belong to the current phase. Only a thread that has taken a piece of it reads them.
  const absl::FunctionRef<void(int64_t)>* work_ = nullptr;
  uint32_t pieces_ = 0;
  std::atomic<bool> exit_{false};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> done_{0};  // pieces of this phase

  std::vector<std::thread> workers_;
};

}  // namespace flotilla::worker
