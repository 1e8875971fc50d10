// InProcessExecutor: the StepExecutor whose one rank lives in this process.
//
// Plans wait in a queue of at most lag + 1 = 2; one thread applies them in order
// with GroupState, computes them with Rank and reports. The scheduler's thread
// never waits for it. A plan that cannot be applied ends the epoch; the next one
// starts at once with empty branches, since weights and memory are unharmed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/bounded_queue.h"
#include "common/rt/clock.h"
#include "common/types/executor.h"
#include "model/gguf.h"
#include "worker/core/group_state.h"
#include "worker/rank.h"

namespace flotilla {

// What the worker has done so far. One writer, any reader: a scrape.
struct WorkerProbe {
  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> rows{0};         // tokens through the forward
  std::atomic<std::uint64_t> decode_rows{0};  // of them decodes
  std::atomic<std::int64_t> compute_ns{0};    // forward and sampling
  std::atomic<std::uint64_t> epochs_lost{0};
  std::atomic<std::int64_t> weight_bytes{0};
  std::atomic<std::int64_t> buffer_bytes{0};
};

class InProcessExecutor final : public StepExecutor {
 public:
  // `file` is read by Start and released; `clock` outlives the executor.
  InProcessExecutor(std::shared_ptr<const GgufFile> file, RankOptions options, const Clock* clock);
  ~InProcessExecutor() override;

  // Loads the model before it returns; OnReady follows on the executor's thread.
  absl::Status Start(ExecutorListener* listener) override;
  absl::Status Execute(StepPlan plan) override;
  void EndEpoch(Epoch epoch) override;
  // Waits for the running step. Not from a listener's method.
  void Stop() override;

  const WorkerProbe& probe() const { return probe_; }

 private:
  void Loop();
  // Executes plans of `epoch` until one fails (its Lost is returned) or Stop.
  std::optional<Lost> RunEpoch(Epoch epoch);
  absl::StatusOr<StepResult> RunPlan(const StepPlan& plan, GroupState& state);
  // Tells the rank of granted blocks whose contents are still to come.
  void PoisonGrants(const StepPlan& plan);

  const RankOptions options_;
  const Clock* const clock_;
  std::shared_ptr<const GgufFile> file_;  // null once started
  ExecutorListener* listener_ = nullptr;
  WorkerProbe probe_;

  // The executor's thread only, once started.
  std::unique_ptr<Rank> rank_;
  // By handle: prefix-cached blocks still to be granted, which keep their
  // contents. Used with poison_blocks only.
  std::vector<std::uint32_t> cached_blocks_;

  absl::Mutex mu_;
  Epoch epoch_ ABSL_GUARDED_BY(mu_){0};  // accepting plans; 0: none yet
  int unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;  // by EndEpoch; a plan wakes the thread
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;

  BoundedQueue<StepPlan> plans_;
  std::thread thread_;
};

}  // namespace flotilla
