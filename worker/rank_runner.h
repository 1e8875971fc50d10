// RankRunner: one rank and the branches of its current epoch.
//
// Plans are applied in order by GroupState and computed by Rank. Owner: an executor or
// a rank process; one thread at a time calls. Knows no queue, socket or thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "model/gguf.h"
#include "worker/core/group_state.h"
#include "worker/core/proposer.h"
#include "worker/rank.h"
#include "worker/step_runner.h"

namespace flotilla {

class RankRunner final : public StepRunner {
 public:
  // Loads the model and warms up, see Rank::Create. The file is not needed afterwards;
  // `clock` outlives the runner.
  static absl::StatusOr<std::unique_ptr<RankRunner>> Create(const GgufFile& file,
                                                            const RankOptions& options,
                                                            const Clock* clock);

  void BeginEpoch(Epoch epoch) override;
  absl::StatusOr<std::optional<StepResult>> Run(const StepPlan& plan) override;
  const ExecutorDescription& description() const override { return rank_->description(); }
  std::int64_t weight_bytes() const override { return rank_->weight_bytes(); }
  std::int64_t buffer_bytes() const override { return rank_->buffer_bytes(); }

 private:
  RankRunner(std::unique_ptr<Rank> rank, bool poison_blocks, const Clock* clock);
  // Tells the rank of granted blocks whose contents are still to come.
  void PoisonGrants(const StepPlan& plan);

  const bool poison_blocks_;
  const Clock* const clock_;
  const std::unique_ptr<Rank> rank_;

  // Of the current epoch; none before the first.
  std::unique_ptr<Proposer> proposer_;  // may be null; the state uses it
  std::optional<GroupState> state_;
  // By handle: prefix-cached blocks still to be granted, which keep their
  // contents. Used with poison_blocks only.
  std::vector<std::uint32_t> cached_blocks_;
};

}  // namespace flotilla
