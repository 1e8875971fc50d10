#include "worker/in_process_executor.h"

#include <utility>
#include <variant>

namespace flotilla {
namespace {

constexpr int kMaxUnanswered = 2;  // lag + 1

Lost::Cause CauseOf(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return Lost::Cause::kDied;  // a tier's disk
  return absl::IsDataLoss(status) ? Lost::Cause::kDigest : Lost::Cause::kInvalidPlan;
}

}  // namespace

InProcessExecutor::InProcessExecutor(std::shared_ptr<const GgufFile> file, RankOptions options,
                                     const Clock* clock)
    : options_(std::move(options)), clock_(clock), file_(std::move(file)), plans_(kMaxUnanswered) {}

InProcessExecutor::~InProcessExecutor() { Stop(); }

absl::Status InProcessExecutor::Start(ExecutorListener* listener) {
  listener_ = listener;
  auto rank = Rank::Create(*file_, options_, *clock_);
  if (!rank.ok()) return rank.status();
  file_.reset();
  rank_ = *std::move(rank);
  probe_.weight_bytes = rank_->weight_bytes();
  probe_.buffer_bytes = rank_->buffer_bytes();
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

absl::Status InProcessExecutor::Execute(StepPlan plan) {
  absl::MutexLock lock(&mu_);
  if (stopped_ || epoch_ == Epoch{0} || plan.epoch != epoch_) {
    return absl::FailedPreconditionError("not the current epoch");
  }
  if (unanswered_ == kMaxUnanswered || !plans_.TryPush(std::move(plan))) {
    return absl::ResourceExhaustedError("lag + 1 plans are unanswered");
  }
  ++unanswered_;
  return absl::OkStatus();
}

void InProcessExecutor::EndEpoch(Epoch epoch) {
  absl::MutexLock lock(&mu_);
  if (stopped_ || epoch_ == Epoch{0} || epoch != epoch_) return;
  epoch_ = Epoch{0};  // from here on plans of this epoch are refused
  ending_ = true;
  plans_.Drain();
  plans_.TryPush(StepPlan{});
}

void InProcessExecutor::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    plans_.Drain();
    plans_.Close();
  }
  if (thread_.joinable()) thread_.join();
}

void InProcessExecutor::Loop() {
  for (Epoch epoch{1};; epoch = Epoch{epoch.value() + 1}) {
    const std::optional<Lost> lost = RunEpoch(epoch);
    if (!lost) return;
    ++probe_.epochs_lost;
    listener_->OnLost(*lost);
  }
}

std::optional<Lost> InProcessExecutor::RunEpoch(Epoch epoch) {
  const std::unique_ptr<Proposer> proposer = rank_->MakeProposer();
  GroupState state(epoch, rank_->description(), proposer.get());
  rank_->ForgetCopies();
  cached_blocks_.assign(rank_->description().max_branches, 0);
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return std::nullopt;
    epoch_ = epoch;
  }
  listener_->OnReady(epoch, rank_->description());
  while (std::optional<StepPlan> plan = plans_.Pop()) {
    auto result = RunPlan(*plan, state);
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return std::nullopt;
      --unanswered_;
      if (ending_) result = absl::DataLossError("the scheduler refused a result of this epoch");
      if (!result.ok()) {
        epoch_ = Epoch{0};
        ending_ = false;
        unanswered_ = 0;
        plans_.Drain();
      }
    }
    if (!result.ok()) {
      return Lost{.epoch = epoch,
                  .cause = CauseOf(result.status()),
                  .detail = std::string(result.status().message()),
                  .started = {}};
    }
    listener_->OnResult(*std::move(result));
  }
  return std::nullopt;
}

absl::StatusOr<StepResult> InProcessExecutor::RunPlan(const StepPlan& plan, GroupState& state) {
  const std::int64_t start = clock_->NowNs();
  auto batch = state.Apply(plan);  // and guesses, which may be computed
  if (!batch.ok()) return batch.status();
  if (options_.poison_blocks) PoisonGrants(plan);

  const absl::Span<const ItemOutput> outputs = rank_->Execute(*batch);
  const StepTimings timings{.start_ns = start,
                            .compute_ns = clock_->NowNs() - start,
                            .rows = static_cast<std::uint32_t>(batch->tokens.size()),
                            .decode_rows = batch->decode_rows};
  // With nothing to compute the plan was sent to learn of a copy's end.
  auto copies = rank_->TakeCopiesDone(/*wait=*/batch->items.empty());
  if (!copies.ok()) return copies.status();
  auto result = state.Complete(plan.step, outputs, *copies);
  if (!result.ok()) return result.status();
  result->timings = timings;
  ++probe_.steps;
  probe_.rows += timings.rows;
  probe_.decode_rows += timings.decode_rows;
  probe_.compute_ns += timings.compute_ns;
  return result;
}

void InProcessExecutor::PoisonGrants(const StepPlan& plan) {
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
