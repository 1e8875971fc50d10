#include "worker/rank_runner.h"

#include <utility>
#include <variant>

namespace flotilla {

RankRunner::RankRunner(std::unique_ptr<Rank> rank, bool poison_blocks, const Clock* clock)
    : poison_blocks_(poison_blocks), clock_(clock), rank_(std::move(rank)) {}

absl::StatusOr<std::unique_ptr<RankRunner>> RankRunner::Create(const GgufFile& file,
                                                               const RankOptions& options,
                                                               const Clock* clock) {
  auto rank = Rank::Create(file, options, *clock);
  if (!rank.ok()) return rank.status();
  return std::unique_ptr<RankRunner>(
      new RankRunner(*std::move(rank), options.poison_blocks, clock));
}

void RankRunner::BeginEpoch(Epoch epoch) {
  state_.reset();  // before the proposer, which it uses
  proposer_ = rank_->MakeProposer();
  state_.emplace(epoch, rank_->description(), proposer_.get());
  rank_->ForgetCopies();
  cached_blocks_.assign(rank_->description().max_branches, 0);
}

absl::StatusOr<std::optional<StepResult>> RankRunner::Run(const StepPlan& plan) {
  const std::int64_t start = clock_->NowNs();
  auto batch = state_->Apply(plan);  // and guesses, which may be computed
  if (!batch.ok()) return batch.status();
  if (poison_blocks_) PoisonGrants(plan);

  const absl::Span<const ItemOutput> outputs = rank_->Execute(*batch);
  const StepTimings timings{.start_ns = start,
                            .compute_ns = clock_->NowNs() - start,
                            .rows = static_cast<std::uint32_t>(batch->tokens.size()),
                            .decode_rows = batch->decode_rows};
  // With nothing to compute the plan was sent to learn of a copy's end.
  auto copies = rank_->TakeCopiesDone(/*wait=*/batch->items.empty());
  if (!copies.ok()) return copies.status();
  auto result = state_->Complete(plan.step, outputs, *copies);
  if (!result.ok()) return result.status();
  result->timings = timings;
  return *std::move(result);
}

void RankRunner::PoisonGrants(const StepPlan& plan) {
  for (const PlanOp& op : plan.ops) {
    if (const auto* open = std::get_if<OpenBranch>(&op)) {
      cached_blocks_[open->branch.value()] = open->cached_tokens / kernels::kKvBlockTokens;
    } else if (const auto* grant = std::get_if<GrantBlocks>(&op)) {
      std::uint32_t& cached = cached_blocks_[grant->branch.value()];
      for (BlockId block : grant->blocks) {
        if (cached > 0) {
          --cached;
        } else {
          rank_->OnGranted(block);
        }
      }
    }
  }
}

}  // namespace flotilla
