#include "worker/exec/rank_runner.h"

#include <cstring>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

RankRunner::RankRunner(std::unique_ptr<Rank> rank, bool poison_blocks, const Clock* clock,
                       Communicator* communicator)
    : poison_blocks_(poison_blocks),
      clock_(clock),
      communicator_(communicator),
      rank_(std::move(rank)) {}

absl::StatusOr<std::unique_ptr<RankRunner>> RankRunner::Create(
    std::shared_ptr<const model::Checkpoint> file, const RankOptions& options, const Clock* clock,
    RankLinks links) {
  auto rank = Rank::Create(std::move(file), options, *clock, links);
  if (!rank.ok()) return rank.status();
  return std::unique_ptr<RankRunner>(
      new RankRunner(*std::move(rank), options.poison_blocks, clock, links.communicator));
}

void RankRunner::BeginEpoch(Epoch epoch) {
  // All ranks have had the same plans. Taking the step metadata that nobody needs any more
  // makes the next metadata that of the new epoch.
  for (; !started_.empty(); started_.pop_front()) {
    (void)Finish(started_.front());  // a failure shows in the next step, too
    communicator_->TakeMetadata();
  }
  copies_ended_.clear();
  state_.reset();  // before the proposer, which it uses
  proposer_ = rank_->MakeProposer();
  state_.emplace(epoch, rank_->description(), proposer_.get());
  rank_->ForgetCopies();
  const ExecutorDescription& description = rank_->description();
  cached_blocks_.assign(description.max_sequences * description.groups.size(), 0);
}

absl::StatusOr<std::optional<StepResult>> RankRunner::Run(const StepPlan& plan) {
  if (started_.size() == rank_->description().lag) {
    if (auto result = CompleteOldest(); !result.ok()) return result.status();
  }
  const std::int64_t start = clock_->NowNs();
  auto batch = state_->Apply(plan);  // and draft tokens, which may be computed
  if (!batch.ok()) return batch.status();

  Started started{.step = plan.step,
                  .outputs = poison_blocks_
                                 ? rank_->Start(*batch, EmptyGrants(plan), NewSequences(plan))
                                 : rank_->Start(*batch),
                  .timings = {.start_ns = start,
                              .rows = static_cast<std::uint32_t>(batch->tokens.size()),
                              .decode_rows = batch->decode_rows}};
  const bool gives_outputs = communicator_ == nullptr || communicator_->last_stage();
  if (gives_outputs) {
    if (absl::Status status = Finish(started); !status.ok()) return status;
  }
  started.timings.compute_ns = clock_->NowNs() - start;
  // A plan with nothing to compute was sent to learn that a copy has ended.
  auto copies = rank_->TakeCopiesDone(/*wait=*/batch->items.empty());
  if (!copies.ok()) {
    (void)Finish(started);  // no step outlives its epoch
    return copies.status();
  }
  if (communicator_ == nullptr) {
    auto result = state_->Complete(plan.step, started.outputs->Finish(), *copies);
    if (!result.ok()) return result.status();
    result->timings = started.timings;
    return *std::move(result);
  }
  SendMetadata(*started.outputs, *copies);
  started_.push_back(std::move(started));
  if (!communicator_->last_stage()) return std::nullopt;
  auto result = CompleteOldest();
  if (!result.ok()) return result.status();
  if (!communicator_->head()) return std::nullopt;
  return *std::move(result);
}

absl::Status RankRunner::Finish(Started& started) {
  if (started.finished) return absl::OkStatus();
  started.finished = true;
  const absl::Status status = rank_->Finish(*started.outputs);
  if (status.ok()) return status;
  failed_ = true;
  return absl::AbortedError(absl::StrCat("the backend failed: ", status.message()));
}

void RankRunner::SendMetadata(const StepOutputs& outputs, absl::Span<const std::uint64_t> copies) {
  const std::uint64_t count = copies.size();
  std::vector<std::byte> metadata((1 + count) * sizeof(std::uint64_t));
  std::memcpy(metadata.data(), &count, sizeof(count));
  if (count > 0) {
    std::memcpy(metadata.data() + sizeof(count), copies.data(), count * sizeof(std::uint64_t));
  }
  if (communicator_->last_stage()) {
    outputs.Write(communicator_->tensor_rank(), communicator_->shape().tensor, metadata);
  }
  communicator_->SendMetadata(metadata);
}

absl::StatusOr<StepResult> RankRunner::CompleteOldest() {
  Started started = std::move(started_.front());
  started_.pop_front();
  if (absl::Status status = Finish(started); !status.ok()) return status;
  const auto all = communicator_->TakeMetadata();
  if (communicator_->aborted()) return absl::AbortedError("another rank has failed");
  const ParallelShape shape = communicator_->shape();
  for (std::uint32_t rank = 0; rank < shape.ranks(); ++rank) {
    absl::Span<const std::byte> metadata = all[rank];
    std::uint64_t count = 0;
    if (metadata.size() < sizeof(count)) {
      return absl::InternalError("the step metadata of a rank is cut short");
    }
    std::memcpy(&count, metadata.data(), sizeof(count));
    metadata.remove_prefix(sizeof(count));
    if (count > metadata.size() / sizeof(std::uint64_t)) {
      return absl::InternalError("the step metadata of a rank is cut short");
    }
    for (; count > 0; --count, metadata.remove_prefix(sizeof(std::uint64_t))) {
      std::uint64_t id = 0;
      std::memcpy(&id, metadata.data(), sizeof(id));
      ++copies_ended_[id];
    }
    if (rank < shape.ranks() - shape.tensor) continue;
    const absl::Status read = started.outputs->Read(rank % shape.tensor, shape.tensor, metadata);
    if (!read.ok()) return read;
  }
  // A copy has ended when it has ended on every rank.
  std::vector<std::uint64_t> ended;
  for (auto copy = copies_ended_.begin(); copy != copies_ended_.end();) {
    if (copy->second == shape.ranks()) ended.push_back(copy->first);
    copy = copy->second == shape.ranks() ? copies_ended_.erase(copy) : std::next(copy);
  }
  auto result = state_->Complete(started.step, started.outputs->Finish(), ended);
  if (result.ok()) result->timings = started.timings;
  return result;
}

std::vector<SequenceHandle> RankRunner::NewSequences(const StepPlan& plan) {
  std::vector<SequenceHandle> handles;
  for (const PlanOp& op : plan.ops) {
    if (const auto* open = std::get_if<OpenSequence>(&op)) handles.push_back(open->sequence);
    if (const auto* fork = std::get_if<ForkSequence>(&op)) handles.push_back(fork->child);
  }
  return handles;
}

std::vector<BlockId> RankRunner::EmptyGrants(const StepPlan& plan) {
  std::vector<BlockId> empty;
  const std::vector<KvGroup>& groups = rank_->description().groups;
  for (const PlanOp& op : plan.ops) {
    if (const auto* open = std::get_if<OpenSequence>(&op)) {
      for (std::size_t g = 0; g < groups.size(); ++g) {
        cached_blocks_[open->sequence.value() * groups.size() + g] =
            open->cached_tokens / groups[g].tokens_per_block -
            groups[g].UnneededBlocks(open->cached_tokens);
      }
    } else if (const auto* grant = std::get_if<GrantBlocks>(&op)) {
      std::uint32_t& cached =
          cached_blocks_[grant->sequence.value() * groups.size() + grant->group.value()];
      for (BlockId block : grant->blocks) {
        if (cached > 0) {
          --cached;
        } else {
          empty.push_back(block);
        }
      }
    }
  }
  return empty;
}

}  // namespace flotilla::worker
