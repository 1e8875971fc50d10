#include "worker/exec/in_process_executor.h"

#include <algorithm>
#include <utility>

#include "worker/exec/local_group.h"
#include "worker/exec/rank_runner.h"

namespace flotilla::worker {
namespace {

// The pauses before a model is loaded again, when backends fail one after another. A pause is
// twice the one before.
constexpr absl::Duration kFirstPause = absl::Seconds(1), kLongestPause = absl::Seconds(30);

// One rank, or all ranks of a group as threads.
absl::StatusOr<std::unique_ptr<StepRunner>> MakeRunner(
    std::shared_ptr<const model::Checkpoint> file, const RankOptions& options, const Clock* clock) {
  if (options.shape.ranks() == 1) return RankRunner::Create(std::move(file), options, clock);
  return LocalGroup::Create(std::move(file), options, clock);
}

}  // namespace

InProcessExecutor::InProcessExecutor(std::shared_ptr<const model::Checkpoint> file,
                                     RankOptions options, const Clock* clock, Logger* log)
    : options_(std::move(options)),
      clock_(clock),
      log_(log),
      file_(std::move(file)),
      max_unanswered_(static_cast<int>(options_.shape.pipeline) + 1),
      plans_(max_unanswered_) {}

InProcessExecutor::~InProcessExecutor() { Stop(); }

absl::Status InProcessExecutor::Start(ExecutorListener* listener) {
  listener_ = listener;
  if (absl::Status status = Load(); !status.ok()) return status;
  probe_.weight_bytes = runner_->weight_bytes();
  probe_.buffer_bytes = runner_->buffer_bytes();
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

absl::Status InProcessExecutor::Load() {
  auto runner = MakeRunner(file_, options_, clock_);
  if (!runner.ok()) return runner.status();
  runner_ = *std::move(runner);
  const RankDevice device = runner_->device();
  if (log_ != nullptr) {
    LogDevice(device, *log_);
    LogPool(device, runner_->description(), *log_);
  }
  probe_.OnLoaded(device, runner_->description());
  absl::MutexLock lock(&mu_);
  device_ = device;
  return absl::OkStatus();
}

absl::Status InProcessExecutor::Execute(StepPlan plan) {
  absl::MutexLock lock(&mu_);
  if (stopped_ || epoch_ == Epoch{0} || plan.epoch != epoch_) {
    return absl::FailedPreconditionError("not the current epoch");
  }
  if (unanswered_ == max_unanswered_ || !plans_.TryPush(std::move(plan))) {
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
    if (!BeginEpoch(epoch)) return;
    const std::optional<Lost> lost = RunEpoch(epoch);
    if (!lost) return;
    if (runner_->failed() && runner_->device().on_gpus() && options_.end_process) {
      options_.end_process(lost->detail);
    }
    ++probe_.epochs_lost;
    listener_->OnLost(*lost);
  }
}

bool InProcessExecutor::BeginEpoch(Epoch epoch) {
  runner_->BeginEpoch(epoch);
  while (runner_ == nullptr || runner_->failed()) {
    if (failures_ > 0 && !Pause()) return false;
    ++failures_;
    runner_.reset();
    if (const absl::Status loaded = Load(); loaded.ok()) {
      runner_->BeginEpoch(epoch);
    } else if (log_ != nullptr) {
      log_->Error("model not loaded again", {{"reason", std::string(loaded.message())}});
    }
  }
  return true;
}

bool InProcessExecutor::Pause() {
  const absl::Duration pause = kFirstPause * (1 << std::min(failures_ - 1, 10));
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&stopped_), std::min(pause, kLongestPause));
  return !stopped_;
}

std::optional<Lost> InProcessExecutor::RunEpoch(Epoch epoch) {
  Step last_result{0};
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return std::nullopt;
    epoch_ = epoch;
  }
  listener_->OnReady(epoch, runner_->description());
  while (std::optional<StepPlan> plan = plans_.Pop()) {
    auto result = runner_->Run(*plan);
    bool asked = false;  // to end this epoch
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return std::nullopt;
      if (result.ok() && result->has_value()) --unanswered_;
      asked = ending_;
      if (asked) result = absl::DataLossError("the scheduler refused a result of this epoch");
      if (!result.ok()) {
        epoch_ = Epoch{0};
        ending_ = false;
        unanswered_ = 0;
        plans_.Drain();
      }
    }
    if (!result.ok()) {
      Lost lost{.epoch = epoch,
                .cause = LostCauseOf(result.status()),
                .detail = std::string(result.status().message()),
                .started = {},
                .blames_requests = absl::IsAborted(result.status()),
                .refused = std::nullopt};
      const bool refused = lost.cause != Lost::Cause::kDied && !asked;
      if (refused) lost.refused = plan->step;
      if (!lost.blames_requests) return lost;
      // One of these steps may have made a backend fail.
      for (std::uint64_t step = last_result.value() + 1; step <= plan->step.value(); ++step) {
        lost.started.push_back(Step{step});
      }
      return lost;
    }
    if (!result->has_value()) continue;
    last_result = (*result)->step;
    failures_ = 0;
    probe_.OnStep((*result)->timings);
    listener_->OnResult(**std::move(result));
  }
  return std::nullopt;
}

}  // namespace flotilla::worker
