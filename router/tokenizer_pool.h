// TokenizerPool: threads that encode prompts and render chat templates, behind
// a queue that is bounded in jobs and in bytes and refuses rather than blocks.
// Owned by the InferenceService; TryRun from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "common/rt/bounded_queue.h"

namespace flotilla {

class TokenizerPool {
 public:
  TokenizerPool(std::uint32_t threads, std::size_t max_jobs, std::size_t max_bytes);
  // Runs what is queued, then joins.
  ~TokenizerPool();
  TokenizerPool(const TokenizerPool&) = delete;
  TokenizerPool& operator=(const TokenizerPool&) = delete;

  // Runs `job` soon on a pool thread, for `tenant` (empty: nobody's in particular);
  // `input_bytes`, the text that the job works on, count while it waits. False, and `job`
  // is not run, when a bound is reached.
  bool TryRun(std::string_view tenant, std::size_t input_bytes, std::function<void()> job);

 private:
  struct Job {
    std::size_t bytes = 0;
    std::function<void()> run;
  };
  void Work();

  const std::size_t max_bytes_;
  std::atomic<std::size_t> queued_bytes_ = 0;
  BoundedQueue<Job> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace flotilla
