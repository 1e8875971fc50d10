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
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "model/checkpoint.h"
#include "worker/core/group_state.h"
#include "worker/core/proposer.h"
#include "worker/exec/rank.h"
#include "worker/exec/step_runner.h"

namespace flotilla::worker {

class RankRunner final : public StepRunner {
 public:
  // Loads the model and warms up, see Rank::Create. `clock` and `links` outlive the runner.
  static absl::StatusOr<std::unique_ptr<RankRunner>> Create(
      std::shared_ptr<const model::Checkpoint> file, const RankOptions& options, const Clock* clock,
      RankLinks links = {});

  void BeginEpoch(Epoch epoch) override;
  absl::StatusOr<std::optional<StepResult>> Run(const StepPlan& plan) override;
  bool Progress() override { return communicator_ != nullptr && communicator_->Progress(); }
  bool failed() const override { return failed_; }
  const ExecutorDescription& description() const override { return rank_->description(); }
  RankDevice device() const override { return rank_->device(); }
  std::int64_t weight_bytes() const override { return rank_->weight_bytes(); }
  std::int64_t buffer_bytes() const override { return rank_->buffer_bytes(); }

 private:
  // A step that this rank has started and not completed.
  struct Started {
    Step step;
    std::unique_ptr<StepOutputs> outputs;
    StepTimings timings;
    bool finished = false;  // its outputs are there
  };

  RankRunner(std::unique_ptr<Rank> rank, bool poison_blocks, const Clock* clock,
             Communicator* communicator);
  // Sends all ranks what this rank has of a step: its outputs and the copies that have
  // ended.
  void SendMetadata(const StepOutputs& outputs, absl::Span<const std::uint64_t> copies);
  // Waits until the step's outputs are there.
  absl::Status Finish(Started& started);
  // Completes the oldest step started, with the step metadata of all ranks.
  absl::StatusOr<StepResult> CompleteOldest();
  // Returns the blocks that the plan grants and whose contents are still to come.
  std::vector<BlockId> EmptyGrants(const StepPlan& plan);
  // Returns the sequences that the plan opens or forks.
  static std::vector<SequenceHandle> NewSequences(const StepPlan& plan);

  const bool poison_blocks_;
  const Clock* const clock_;
  Communicator* const communicator_;  // null: the only rank
  // Outlives the rank, whose backend may still write to outputs. Of the current epoch.
  std::deque<Started> started_;
  const std::unique_ptr<Rank> rank_;

  bool failed_ = false;  // the backend computes nothing any more

  // These belong to the current epoch. There are none before the first.
  std::unique_ptr<Proposer> proposer_;  // may be null; the state uses it
  std::optional<GroupState> state_;
  // Background copies that some ranks have reported ended, and by how many ranks.
  std::map<std::uint64_t, std::uint32_t> copies_ended_;
  // [handles, groups]: how many prefix-cached blocks, which keep their contents, are still to be
  // granted. Used with poison_blocks only.
  std::vector<std::uint32_t> cached_blocks_;
};

}  // namespace flotilla::worker
