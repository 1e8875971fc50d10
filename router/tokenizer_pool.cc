#include "router/tokenizer_pool.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/rt/allocator.h"

namespace flotilla::router {
TokenizerPool::TokenizerPool(std::uint32_t threads, std::size_t max_jobs, std::size_t max_bytes)
    : queue_({std::max(threads, 1u), max_jobs, max_bytes}) {
  for (std::uint32_t i = 0; i < std::max(threads, 1u); ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

TokenizerPool::~TokenizerPool() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool TokenizerPool::TryRun(std::string_view tenant, std::size_t input_bytes,
                           std::function<void()> job, Abandoned abandoned) {
  std::vector<Job> swept;  // destroyed after the lock is given back
  absl::MutexLock lock(&mu_);
  const std::uint64_t id = next_id_++;
  if (!queue_.Push(tenant, input_bytes, id)) {
    swept = Sweep();
    if (swept.empty() || !queue_.Push(tenant, input_bytes, id)) return false;
  }
  jobs_.emplace(id, Job{std::move(job), std::move(abandoned)});
  return true;
}

void TokenizerPool::Work() {
  while (std::optional<Turn> turn = Wait()) {
    try {
      if (!turn->job.dropped()) turn->job.run();
    } catch (const std::bad_alloc&) {
      // Jobs report errors to their own request. If they have no memory even for that, the
      // report is lost, but the thread goes on.
    }
    turn->job = {};  // frees its memory before another job takes its place
    // The allocator would keep the memory, for each thread that has had a large input.
    if (turn->size == FairQueue::Size::kLarge) ReturnFreeMemory();
    absl::MutexLock lock(&mu_);
    queue_.Done(turn->size);
  }
}

std::optional<TokenizerPool::Turn> TokenizerPool::Wait() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &TokenizerPool::HasWorkOrEnds));
  const std::optional<FairQueue::Job> next = queue_.Next();
  if (!next) return std::nullopt;
  return Turn{next->size, Take(next->id)};
}

bool TokenizerPool::HasWorkOrEnds() const {
  return queue_.HasNext() || (closed_ && queue_.waiting() == 0);
}

TokenizerPool::Job TokenizerPool::Take(std::uint64_t id) {
  return std::move(jobs_.extract(id).mapped());
}

std::vector<TokenizerPool::Job> TokenizerPool::Sweep() {
  std::vector<std::uint64_t> dropped;
  for (const auto& [id, job] : jobs_) {
    if (job.dropped()) dropped.push_back(id);
  }
  std::vector<Job> taken;
  for (const std::uint64_t id : dropped) {
    queue_.Remove(id);
    taken.push_back(Take(id));
  }
  return taken;
}

}  // namespace flotilla::router
