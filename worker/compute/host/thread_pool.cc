#include "worker/compute/host/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "common/rt/cpu_quota.h"

namespace flotilla::worker {
namespace {

// A futex wake-up takes about this long; spinning longer never pays.
constexpr std::chrono::microseconds kSpin{30};
// Pauses between two looks at the clock, about 1 us.
constexpr int kPausesPerCheck = 32;
// Pieces of a thread's part. Other threads can take pieces while this thread does not run.
// A piece of one row's smallest product still takes a microsecond.
constexpr int64_t kPiecesPerThread = 4;
constexpr int kMaxThreads = 1024;
// This number fits the 16 bits of Part.
constexpr int64_t kMaxPieces = 0x8000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : threads_(std::clamp(threads, 1, kMaxThreads)),
      spin_(threads_ > 1 && threads_ <= AvailableCpus()),
      parts_(threads_) {
  workers_.reserve(threads_ - 1);
  for (int t = 1; t < threads_; ++t) workers_.emplace_back([this, t] { WorkerLoop(t); });
}

ThreadPool::~ThreadPool() {
  exit_ = true;
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
  for (uint32_t seen = 0;;) {
    WaitWhile(generation_, seen);
    // The order matters: whoever sees the generation of the end sees the end, too.
    seen = generation_.load();
    if (exit_.load()) return;
    RunPieces(thread, seen);
  }
}

void ThreadPool::RunPieces(int thread, uint32_t generation) {
  for (int i = 0; i < threads_; ++i) {
    std::atomic<uint64_t>& word = parts_[(thread + i) % threads_].word;
    uint64_t part = word.load(std::memory_order_acquire);
    while (true) {
      const uint64_t next = part >> 16 & 0xFFFF, end = part & 0xFFFF;
      if (part >> 32 != generation || next == end) break;
      if (!word.compare_exchange_weak(part, part + 0x10000, std::memory_order_acq_rel)) continue;
      // This piece is taken and not done, so the caller still waits, and work_ belongs to
      // the phase of the piece.
      const uint32_t pieces = pieces_;
      (*work_)(static_cast<int64_t>(next));
      if (done_.fetch_add(1) + 1 == pieces) done_.notify_one();
      part = word.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::RunPhase(int pieces, bool shared, absl::FunctionRef<void(int64_t)> fn) {
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  work_ = &fn;
  pieces_ = static_cast<uint32_t>(pieces);
  done_.store(0, std::memory_order_relaxed);
  for (int t = 0; t < threads_; ++t) {
    const uint64_t begin = shared ? 0 : uint64_t{pieces_} * t / threads_;
    const uint64_t end = shared ? (t == 0 ? pieces_ : 0) : uint64_t{pieces_} * (t + 1) / threads_;
    parts_[t].word.store(uint64_t{generation} << 32 | begin << 16 | end, std::memory_order_release);
  }
  generation_.store(generation);
  generation_.notify_all();
  RunPieces(0, generation);
  for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != pieces_;) {
    WaitWhile(done_, done);
  }
}

void ThreadPool::ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int64_t)> fn) {
  if (count <= 1 || threads_ == 1) {
    if (count > 0) fn(0, count);
    return;
  }
  const int64_t pieces = std::min<int64_t>(count, kPiecesPerThread * threads_);
  RunPhase(static_cast<int>(pieces), /*shared=*/false,
           [&](int64_t i) { fn(count * i / pieces, count * (i + 1) / pieces); });
}

void ThreadPool::ParallelItems(int64_t count, absl::FunctionRef<void(int64_t)> fn) {
  if (count <= 1 || threads_ == 1) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  const int64_t pieces = std::min(count, kMaxPieces);
  RunPhase(static_cast<int>(pieces), /*shared=*/true, [&](int64_t piece) {
    for (int64_t i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i) fn(i);
  });
}

}  // namespace flotilla::worker
