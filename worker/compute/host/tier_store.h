// TierStore: the tiers of one rank below its KV memory, and the thread that copies.
//
// The host tier is memory outside the block pool (on a CPU it is the same DRAM). The disk tier is
// an unnamed file. Copies run in the order in which they are started, beside the forward. The
// scheduler decides which blocks and slots they may touch. The executor's thread calls Start,
// TakeDone and Reset.
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

namespace flotilla::worker {

// The blocks that tiers copy, where the backend has them. The store's thread calls it, and nobody
// else does while that thread runs.
class TieredBlocks {
 public:
  virtual ~TieredBlocks() = default;
  virtual std::int64_t bytes_per_block() const = 0;
  // Memory of the host for so many blocks, which lives as long as this; another one each time.
  // RESOURCE_EXHAUSTED: there is not enough.
  virtual absl::StatusOr<std::byte*> Reserve(std::uint32_t blocks) = 0;
  // How many of them it makes in a short time.
  virtual std::uint32_t blocks_at_a_time() const { return ~0u; }
  // Copy one block to reserved memory, and back. They return when it is done.
  virtual absl::Status CopyOut(BlockId from, std::byte* to) = 0;
  virtual absl::Status CopyIn(const std::byte* from, BlockId to) = 0;
};

class TierStore {
 public:
  // Reserves memory and disk and measures what copies cost. `blocks` outlive the
  // store. RESOURCE_EXHAUSTED: not enough of either. UNAVAILABLE: no file can be
  // made in the directory. `progress`, which may be null, learns that it gets further.
  static absl::StatusOr<std::unique_ptr<TierStore>> Create(const TierOptions& options,
                                                           TieredBlocks& blocks, const Clock& clock,
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
  explicit TierStore(TieredBlocks& blocks) : blocks_(blocks) {}
  absl::Status AddHost(std::uint32_t blocks, LoadProgress* progress);
  absl::Status AddDisk(std::uint32_t blocks, const std::string& directory, LoadProgress* progress);
  absl::Status Measure(const Clock& clock);
  void Loop();
  absl::Status Copy(const BackgroundCopy& copy);
  // Between the file and `staged_`.
  absl::Status MoveDisk(BackgroundCopy::Kind kind, std::uint32_t slot);

  bool Wakes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_ || !queue_.empty(); }
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !done_.empty() || !failure_.ok() || (queue_.empty() && !copying_);
  }
  bool Quiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !copying_; }

  TieredBlocks& blocks_;
  std::vector<KvTier> tiers_;
  // The slots of the host tier, in pieces of as many slots, of which the last may have fewer.
  std::vector<std::byte*> host_;
  std::uint32_t piece_slots_ = 1;
  std::byte* staged_ = nullptr;  // one block on its way to the file or back
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
