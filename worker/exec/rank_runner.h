// RankRunner: one rank and the sequences of its current epoch.
//
// GroupState applies plans in order, and Rank computes them. Where there are several
// ranks, each sends the others what it sampled, so that all states stay the same. Stages
// before the last take the samples only when they have to, which lets a pipeline fill. An
// executor or a rank process owns the runner; one thread at a time calls it. A runner
// knows no queue, socket or thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "model/checkpoint.h"
#include "worker/core/group_state.h"
#include "worker/core/proposer.h"
#include "worker/exec/rank.h"
#include "worker/exec/step_runner.h"

namespace flotilla::worker {

class RankRunner final : public StepRunner {
 public:
  // Loads the model and warms up, see Rank::Create. `clock` and `communicator` outlive
  // the runner.
  static absl::StatusOr<std::unique_ptr<RankRunner>> Create(
      std::shared_ptr<const model::Checkpoint> file, const RankOptions& options, const Clock* clock,
      Communicator* communicator = nullptr);

  void BeginEpoch(Epoch epoch) override;
  absl::StatusOr<std::optional<StepResult>> Run(const StepPlan& plan) override;
  bool Progress() override { return communicator_ != nullptr && communicator_->Progress(); }
  const ExecutorDescription& description() const override { return rank_->description(); }
  std::int64_t weight_bytes() const override { return rank_->weight_bytes(); }
  std::int64_t buffer_bytes() const override { return rank_->buffer_bytes(); }

 private:
  // A step that this rank has computed and not completed.
  struct Computed {
    Step step;
    StepOutputs outputs;
    StepTimings timings;
  };

  RankRunner(std::unique_ptr<Rank> rank, bool poison_blocks, const Clock* clock,
             Communicator* communicator);
  // Sends all ranks what this rank has of a step: its outputs and the copies that have
  // ended.
  void SendMetadata(const StepOutputs& outputs, absl::Span<const std::uint64_t> copies);
  // Completes the oldest step computed, with the step metadata of all ranks.
  absl::StatusOr<StepResult> CompleteOldest();
  // Informs the rank of granted blocks whose contents are still to come.
  void PoisonGrants(const StepPlan& plan);

  const bool poison_blocks_;
  const Clock* const clock_;
  Communicator* const communicator_;  // null: the only rank
  const std::unique_ptr<Rank> rank_;

  // These belong to the current epoch. There are none before the first.
  std::unique_ptr<Proposer> proposer_;  // may be null; the state uses it
  std::optional<GroupState> state_;
  std::deque<Computed> computed_;
  // Background copies that some ranks have reported ended, and by how many ranks.
  std::map<std::uint64_t, std::uint32_t> copies_ended_;
  // By handle: how many prefix-cached blocks, which keep their contents, are still to be
  // granted. Used with poison_blocks only.
  std::vector<std::uint32_t> cached_blocks_;
};

}  // namespace flotilla::worker
