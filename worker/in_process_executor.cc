#include "worker/in_process_executor.h"

#include <utility>

namespace flotilla {
namespace {

constexpr int kMaxUnanswered = 2;  // lag + 1

}  // namespace

InProcessExecutor::InProcessExecutor(std::shared_ptr<const GgufFile> file, RankOptions options,
                                     const Clock* clock)
    : options_(std::move(options)), clock_(clock), file_(std::move(file)), plans_(kMaxUnanswered) {}

InProcessExecutor::~InProcessExecutor() { Stop(); }

absl::Status InProcessExecutor::Start(ExecutorListener* listener) {
  listener_ = listener;
  auto rank = RankRunner::Create(*file_, options_, clock_);
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
  rank_->BeginEpoch(epoch);
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return std::nullopt;
    epoch_ = epoch;
  }
  listener_->OnReady(epoch, rank_->description());
  while (std::optional<StepPlan> plan = plans_.Pop()) {
    auto result = rank_->Run(*plan);
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return std::nullopt;
      if (result.ok() && result->has_value()) --unanswered_;
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
                  .cause = LostCauseOf(result.status()),
                  .detail = std::string(result.status().message()),
                  .started = {}};
    }
    if (!result->has_value()) continue;
    probe_.OnStep((*result)->timings);
    listener_->OnResult(**std::move(result));
  }
  return std::nullopt;
}

}  // namespace flotilla
