// TokenizerPool: threads that encode prompts, render chat templates and parse large bodies,
// behind a queue that is bounded in jobs and in bytes and refuses rather than blocks.
//
// FairQueue (router/core/fair_queue.h) decides which job is next and which may wait: tenants
// take turns, short inputs pass long ones, and one thread is left for short inputs. Jobs are
// not interrupted, so the caller of TryRun bounds its job. The InferenceService owns the pool.
// TryRun may be called on any thread.
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

namespace flotilla::router {

class TokenizerPool {
 public:
  // Set when nobody wants a job's result any more.
  using Abandoned = std::shared_ptr<const std::atomic<bool>>;

  TokenizerPool(std::uint32_t threads, std::size_t max_jobs, std::size_t max_bytes);
  // Runs the jobs that are queued, then joins the threads.
  ~TokenizerPool();
  TokenizerPool(const TokenizerPool&) = delete;
  TokenizerPool& operator=(const TokenizerPool&) = delete;

  // Runs `job` soon on a pool thread. Its turn is charged to `tenant` (empty: the request names
  // no tenant). `input_bytes` is the length of the text that the job works on. It counts towards
  // the bound while the job waits. Returns false and does not run `job` if a bound is reached. A
  // job that is abandoned (null: never) before its turn does not run either, and takes no room from
  // others.
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
  // Waits for the job that this thread runs next, and returns it. Returns none when the pool ends.
  std::optional<Turn> Wait();
  bool HasWorkOrEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Job Take(std::uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes abandoned jobs from the queue. The caller destroys them without the lock, because
  // jobs may hold megabytes.
  std::vector<Job> Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  FairQueue queue_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::uint64_t, Job> jobs_ ABSL_GUARDED_BY(mu_);  // those that wait
  std::uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace flotilla::router
