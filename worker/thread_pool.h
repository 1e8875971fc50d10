// ThreadPool: the compute threads of one rank. The thread that calls takes part,
// so a pool of one starts no thread.
//
// Owner: the executor; one thread at a time may call. A step is a few hundred
// short phases. Each thread has its own part of a phase, the same every time so
// that it finds its part of a matrix in its cache, and takes pieces of others'
// parts when it is done: a thread that the system has put aside holds nobody up.
// Waits spin for about one wake-up (30 us) and then sleep on a futex; with more
// threads than CPUs they sleep at once. An idle pool uses no CPU. Results must
// not depend on who does what: no op reduces across a cut.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace flotilla {

class ThreadPool {
 public:
  // `threads` in 1 .. 1,024 (clamped), the caller's included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls fn with ranges that cover [0, count) once, a few per thread, and
  // returns when all calls have returned. What was written before is seen by all
  // calls, what they wrote by the caller.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t begin, int64_t end)> fn);

  // Calls fn(i) once for every i below `count`, each on whichever thread is
  // free: for items of unequal cost, dearest first.
  void ParallelItems(int64_t count, absl::FunctionRef<void(int64_t item)> fn);

 private:
  // Pieces [next, end) of a phase that nobody has taken, and the phase's
  // generation, so that a thread that comes late takes nothing of a later one.
  struct alignas(64) Part {
    std::atomic<uint64_t> word{0};  // generation 32, next 16, end 16
  };

  void WorkerLoop(int thread);
  // Runs all pieces; a part of them is each thread's own, or (`shared`) they are
  // taken in ascending order by all.
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

}  // namespace flotilla
