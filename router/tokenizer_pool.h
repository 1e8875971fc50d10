// TokenizerPool: threads that encode prompts, render chat templates and parse large bodies,
// behind a queue that is bounded in jobs and in bytes and refuses rather than blocks.
//
// Which job is next, and who may wait, FairQueue decides (router/core/fair_queue.h): tenants
// take turns, short inputs pass long ones, and a thread is left for them. Jobs are not
// interrupted: whoever brings one bounds it. Owned by the InferenceService; TryRun from any
// thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "router/core/fair_queue.h"

namespace flotilla {

class TokenizerPool {
 public:
  // Set when nobody wants a job's result any more.
  using Abandoned = std::shared_ptr<const std::atomic<bool>>;

  TokenizerPool(std::uint32_t threads, std::size_t max_jobs, std::size_t max_bytes);
  // Runs what is queued, then joins.
  ~TokenizerPool();
  TokenizerPool(const TokenizerPool&) = delete;
  TokenizerPool& operator=(const TokenizerPool&) = delete;

  // Runs `job` soon on a pool thread, for `tenant` (empty: nobody's in particular), whom its
  // turn is charged to; `input_bytes`, the text that the job works on, count while it waits.
  // False, and `job` is not run, when a bound is reached. A job that is abandoned (null:
  // never) before its turn is not run either, and takes no room from others.
  bool TryRun(std::string_view tenant, std::size_t input_bytes, std::function<void()> job,
              Abandoned abandoned = nullptr);

 private:
  struct Job {
    std::function<void()> run;
    Abandoned abandoned;
    bool dropped() const { return abandoned != nullptr && abandoned->load(); }
  };
  struct Turn {
    FairQueue::Size size;
    Job job;
  };

  void Work();
  // Returns the job that this thread runs next. None: the pool ends.
  std::optional<Turn> Wait();
  bool HasWorkOrEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Job Take(std::uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes what is abandoned out of the queue: to be destroyed without the lock, as jobs may
  // hold megabytes.
  std::vector<Job> Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  FairQueue queue_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::uint64_t, Job> jobs_ ABSL_GUARDED_BY(mu_);  // those that wait
  std::uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace flotilla
