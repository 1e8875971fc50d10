#include "worker/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "worker/cpu_quota.h"

namespace flotilla {
namespace {

// A futex wake-up takes about this long; spinning longer never pays.
constexpr std::chrono::microseconds kSpin{30};
// Pauses between two looks at the clock, about 1 us.
constexpr int kPausesPerCheck = 32;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : threads_(std::max(1, threads)), spin_(threads_ > 1 && threads_ <= AvailableCpus()) {
  workers_.reserve(threads_ - 1);
  for (int t = 1; t < threads_; ++t) workers_.emplace_back([this, t] { WorkerLoop(t); });
}

ThreadPool::~ThreadPool() {
  work_ = nullptr;
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::WaitWhile(const std::atomic<uint32_t>& word, uint32_t old) const {
  if (spin_) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < kPausesPerCheck; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        Pause();
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  word.wait(old, std::memory_order_acquire);
}

void ThreadPool::WorkerLoop(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    WaitWhile(generation_, seen);
    if (work_ == nullptr) return;
    (*work_)(thread);
    finished_.fetch_add(1);
    finished_.notify_one();
  }
}

void ThreadPool::Run(absl::FunctionRef<void(int)> fn) {
  if (threads_ == 1) {
    fn(0);
    return;
  }
  work_ = &fn;
  const uint32_t target = finished_.load(std::memory_order_relaxed) + threads_ - 1;
  generation_.fetch_add(1);
  generation_.notify_all();
  fn(0);
  for (uint32_t done; (done = finished_.load(std::memory_order_acquire)) != target;) {
    WaitWhile(finished_, done);
  }
}

void ThreadPool::ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int64_t)> fn) {
  if (count <= 1 || threads_ == 1) {
    if (count > 0) fn(0, count);
    return;
  }
  Run([&](int thread) {
    const int64_t begin = count * thread / threads_;
    const int64_t end = count * (thread + 1) / threads_;
    if (begin < end) fn(begin, end);
  });
}

void ThreadPool::ParallelItems(int64_t count, absl::FunctionRef<void(int64_t)> fn) {
  if (count <= 1 || threads_ == 1) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  next_item_.store(0, std::memory_order_relaxed);
  Run([&](int) {
    for (int64_t i; (i = next_item_.fetch_add(1, std::memory_order_relaxed)) < count;) fn(i);
  });
}

}  // namespace flotilla
