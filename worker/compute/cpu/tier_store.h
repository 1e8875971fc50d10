// TierStore: the tiers of one rank below its KV cache, and the thread that copies.
//
// The host tier is memory outside the block pool (for a GPU; on a CPU it is the same
// DRAM). The disk tier is an unnamed file. Copies run in the order in which they are
// started, beside the forward. The scheduler decides which blocks and slots they may
// touch. The executor's thread calls Start, TakeDone and Reset.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/clock.h"
#include "common/rt/load_progress.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "worker/compute/backend.h"
#include "worker/compute/cpu/kv_cache.h"

namespace flotilla::worker {

class TierStore {
 public:
  // Reserves memory and disk and measures what copies cost. `cache` outlives the
  // store. RESOURCE_EXHAUSTED: not enough of either. UNAVAILABLE: no file can be
  // made in the directory. `progress`, which may be null, learns that it gets further.
  static absl::StatusOr<std::unique_ptr<TierStore>> Create(const TierOptions& options,
                                                           KvCache& cache, const Clock& clock,
                                                           LoadProgress* progress = nullptr);
  // Waits for the copy that runs.
  ~TierStore();

  // The tiers that exist; empty if there are none.
  const std::vector<KvTier>& tiers() const { return tiers_; }

  // Starts a copy whose blocks and slots exist.
  void Start(BackgroundCopy copy);
  // Returns the ids of copies that have ended since the last call, ascending. With `wait`
  // it first waits until one has ended, unless none is under way. UNAVAILABLE: the disk
  // failed, and nothing that tiers keep can be relied on.
  absl::StatusOr<std::vector<std::uint64_t>> TakeDone(bool wait);
  // Forgets all copies, and returns when none runs.
  void Reset();

 private:
  explicit TierStore(KvCache& cache) : cache_(cache) {}
  absl::Status AddHost(std::uint32_t blocks);
  absl::Status AddDisk(std::uint32_t blocks, const std::string& directory, LoadProgress* progress);
  absl::Status Measure(const Clock& clock);
  void Loop();
  absl::Status Copy(const BackgroundCopy& copy);
  absl::Status CopyDisk(BackgroundCopy::Kind kind, const BackgroundCopy::Move& move);

  bool Wakes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_ || !queue_.empty(); }
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !done_.empty() || !failure_.ok() || (queue_.empty() && !copying_);
  }
  bool Quiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !copying_; }

  KvCache& cache_;
  std::vector<KvTier> tiers_;
  KvCache host_;
  int disk_ = -1;

  absl::Mutex mu_;
  std::deque<BackgroundCopy> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<std::uint64_t> done_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool copying_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace flotilla::worker
