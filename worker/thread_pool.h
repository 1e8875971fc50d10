// ThreadPool: the compute threads of one rank. The thread that calls takes part
// as thread 0, so a pool of one starts no thread.
//
// Owner: the executor; one thread at a time may call. A step is a few hundred
// short phases, so waits spin for about one wake-up (30 us) and then sleep on a
// futex; with more threads than CPUs they sleep at once. An idle pool uses no
// CPU. Results must not depend on the number of threads: the pool only cuts
// ranges, and no op reduces across a cut.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace flotilla {

class ThreadPool {
 public:
  // `threads` >= 1, the caller's included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls fn(t) once on every thread t and returns when all have returned. What
  // was written before the call is seen by all, what they wrote by the caller.
  void Run(absl::FunctionRef<void(int thread)> fn);

  // Cuts [0, count) into one range per thread, the same range for the same
  // thread every time, so that a core finds its part of a matrix in its cache.
  // Threads without an item are not called.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t begin, int64_t end)> fn);

  // Calls fn(i) for every i below `count`, each on whichever thread is free:
  // for items of unequal cost, largest first.
  void ParallelItems(int64_t count, absl::FunctionRef<void(int64_t item)> fn);

 private:
  void WorkerLoop(int thread);
  // Returns once `word` differs from `old`.
  void WaitWhile(const std::atomic<uint32_t>& word, uint32_t old) const;

  const int threads_;
  const bool spin_;

  // Written by the caller before it bumps generation_, read by workers after.
  const absl::FunctionRef<void(int)>* work_ = nullptr;  // null: exit
  alignas(64) std::atomic<uint32_t> generation_{0};
  // Workers that have finished, ever; the caller waits for a multiple.
  alignas(64) std::atomic<uint32_t> finished_{0};
  alignas(64) std::atomic<int64_t> next_item_{0};

  std::vector<std::thread> workers_;
};

}  // namespace flotilla
