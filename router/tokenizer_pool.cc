#include "router/tokenizer_pool.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace flotilla {

TokenizerPool::TokenizerPool(std::uint32_t threads, std::size_t max_jobs, std::size_t max_bytes)
    : max_bytes_(max_bytes), queue_(max_jobs) {
  for (std::uint32_t i = 0; i < std::max(threads, 1u); ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

TokenizerPool::~TokenizerPool() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

bool TokenizerPool::TryRun(std::string_view /*tenant*/, std::size_t input_bytes,
                           std::function<void()> job) {
  if (queued_bytes_.fetch_add(input_bytes) + input_bytes <= max_bytes_ &&
      queue_.TryPush({input_bytes, std::move(job)})) {
    return true;
  }
  queued_bytes_.fetch_sub(input_bytes);
  return false;
}

void TokenizerPool::Work() {
  while (std::optional<Job> job = queue_.Pop()) {
    queued_bytes_.fetch_sub(job->bytes);
    job->run();
  }
}

}  // namespace flotilla
