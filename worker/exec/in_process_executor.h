// InProcessExecutor: the StepExecutor whose ranks live in this process.
//
// Plans wait in a queue of at most lag + 1 (2 with one stage). One thread runs them in order
// with a StepRunner and reports results. The scheduler's thread never waits for this thread. A
// plan that cannot be applied ends the epoch. The next epoch starts at once with no sequences,
// since weights and memory are unharmed. If a backend fails, the executor first loads the model
// again: at once, or after 1, 2, 4 … 30 s if backends keep failing before they give a result.
#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/obs/log.h"
#include "common/rt/bounded_queue.h"
#include "common/rt/clock.h"
#include "common/types/executor.h"
#include "model/checkpoint.h"
#include "worker/exec/metrics.h"
#include "worker/exec/rank.h"
#include "worker/exec/step_runner.h"

namespace flotilla::worker {

class InProcessExecutor final : public StepExecutor {
 public:
  // `clock` and `log` outlive the executor. The log gets the device of each load; null: none does.
  InProcessExecutor(std::shared_ptr<const model::Checkpoint> file, RankOptions options,
                    const Clock* clock, Logger* log = nullptr);
  ~InProcessExecutor() override;

  // Loads the model before it returns; OnReady follows on the executor's thread.
  absl::Status Start(ExecutorListener* listener) override;
  absl::Status Execute(StepPlan plan) override;
  void EndEpoch(Epoch epoch) override;
  // Waits for the running step. A listener's method must not call it.
  void Stop() override;

  const WorkerProbe& probe() const { return probe_; }
  // What computes since the last load. Any thread may call it.
  RankDevice device() const {
    absl::MutexLock lock(&mu_);
    return device_;
  }

 private:
  // Loads the model as runner_.
  absl::Status Load();
  void Loop();
  // Brings the runner, or a new one in place of one that has failed, to a new epoch. Returns false
  // after Stop.
  bool BeginEpoch(Epoch epoch);
  // Waits before the model is loaded again. Returns false after Stop.
  bool Pause();
  // Executes plans of `epoch` until one fails, and returns its Lost; none after Stop.
  std::optional<Lost> RunEpoch(Epoch epoch);

  const RankOptions options_;
  const Clock* const clock_;
  Logger* const log_;
  const std::shared_ptr<const model::Checkpoint> file_;
  const int max_unanswered_;  // lag + 1
  ExecutorListener* listener_ = nullptr;
  WorkerProbe probe_;

  // Once started, only the executor's thread uses these.
  std::unique_ptr<StepRunner> runner_;
  int failures_ = 0;  // of backends, since the last result

  mutable absl::Mutex mu_;
  RankDevice device_ ABSL_GUARDED_BY(mu_);
  Epoch epoch_ ABSL_GUARDED_BY(mu_){0};  // accepting plans; 0: none yet
  int unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;  // by EndEpoch; a plan wakes the thread
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;

  BoundedQueue<StepPlan> plans_;
  std::thread thread_;
};

}  // namespace flotilla::worker
