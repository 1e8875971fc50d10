// LocalGroup: all ranks of a worker group as threads of this process.
//
// A plan runs on all ranks at once; the head rank gives the result. Stages do not
// overlap: a pipeline computes one step at a time here. An executor owns the group; one
// thread at a time calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/clock.h"
#include "model/checkpoint.h"
#include "worker/comm/shared_memory_communicator.h"
#include "worker/exec/rank_runner.h"
#include "worker/exec/step_runner.h"

namespace flotilla::worker {

class LocalGroup final : public StepRunner {
 public:
  // Loads the ranks of `options.shape`, see Rank::Create. `clock` outlives the group.
  static absl::StatusOr<std::unique_ptr<LocalGroup>> Create(
      std::shared_ptr<const model::Checkpoint> file, const RankOptions& options,
      const Clock* clock);
  ~LocalGroup() override;

  void BeginEpoch(Epoch epoch) override;
  absl::StatusOr<std::optional<StepResult>> Run(const StepPlan& plan) override;
  bool failed() const override;
  const ExecutorDescription& description() const override { return head().description(); }
  RankDevice device() const override;
  // The sums over all ranks.
  std::int64_t weight_bytes() const override;
  std::int64_t buffer_bytes() const override;

 private:
  LocalGroup() = default;
  absl::Status Load(std::shared_ptr<const model::Checkpoint> file, const RankOptions& options,
                    const Clock* clock);
  const RankRunner& head() const { return *runners_[head_]; }
  // Calls fn(rank) on each rank's thread and waits for all.
  void OnAll(absl::FunctionRef<void(std::size_t rank)> fn);
  void Loop(std::size_t rank);

  std::vector<std::unique_ptr<SharedMemoryCommunicator>> communicators_;  // [ranks]
  std::vector<std::unique_ptr<RankRunner>> runners_;                      // [ranks]
  std::size_t head_ = 0;

  absl::Mutex mu_;
  const absl::FunctionRef<void(std::size_t)>* work_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::uint64_t round_ ABSL_GUARDED_BY(mu_) = 0;  // of work
  std::size_t running_ ABSL_GUARDED_BY(mu_) = 0;  // threads in this round
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // [ranks]
};

}  // namespace flotilla::worker
