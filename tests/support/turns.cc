#include "tests/support/turns.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace flotilla::testing {

class Turns::Member final : public StepExecutor, private ExecutorListener {
 public:
  Member(Turns* turns, std::size_t index, StepExecutor* inner)
      : turns_(turns), index_(index), inner_(inner) {}
  ~Member() override ABSL_LOCKS_EXCLUDED(turns_->mu_) {
    absl::MutexLock lock(&turns_->mu_);
    turns_->members_[index_] = nullptr;
  }

  absl::Status Start(ExecutorListener* listener) override {
    listener_ = listener;
    return inner_->Start(this);
  }

  absl::Status Execute(StepPlan plan) override ABSL_LOCKS_EXCLUDED(turns_->mu_) {
    absl::MutexLock lock(&turns_->mu_);
    plans_.push_back(std::move(plan));
    turns_->Next();
    return absl::OkStatus();
  }

  void EndEpoch(Epoch epoch) override { inner_->EndEpoch(epoch); }

  void Stop() override ABSL_LOCKS_EXCLUDED(turns_->mu_) {
    EndStep(/*rows=*/0, /*forget=*/true);
    inner_->Stop();
  }

  // Called under the lock of the turns. False: there is no plan, or it was refused.
  bool BeginStep() {
    if (plans_.empty()) return false;
    StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    return inner_->Execute(std::move(plan)).ok();
  }

 private:
  void OnReady(Epoch epoch, const ExecutorDescription& description) override {
    listener_->OnReady(epoch, description);
  }
  void OnResult(StepResult result) override {
    EndStep(result.timings.rows, /*forget=*/false);
    listener_->OnResult(std::move(result));
  }
  void OnLost(const Lost& lost) override {
    EndStep(/*rows=*/0, /*forget=*/true);
    listener_->OnLost(lost);
  }

  // Ends the running step, if it is a step of this member. With `forget` the member has no more
  // steps.
  void EndStep(std::uint32_t rows, bool forget) ABSL_LOCKS_EXCLUDED(turns_->mu_) {
    absl::MutexLock lock(&turns_->mu_);
    if (forget) plans_.clear();
    if (!turns_->running_ || turns_->last_ != index_) return;
    turns_->step_ns_[index_] += turns_->clock_.NowNs() - turns_->start_ns_;
    turns_->rows_[index_] += rows;
    turns_->running_ = false;
    turns_->Next();
  }

  Turns* const turns_;
  const std::size_t index_;
  StepExecutor* const inner_;
  ExecutorListener* listener_ = nullptr;
  std::deque<StepPlan> plans_;  // under the lock of the turns
};

std::unique_ptr<StepExecutor> Turns::Join(StepExecutor* inner) {
  absl::MutexLock lock(&mu_);
  auto member = std::make_unique<Member>(this, members_.size(), inner);
  members_.push_back(member.get());
  step_ns_.push_back(0);
  rows_.push_back(0);
  return member;
}

std::int64_t Turns::StepNs(std::size_t member) const {
  absl::MutexLock lock(&mu_);
  return step_ns_[member];
}

void Turns::Next() {
  if (running_) return;
  std::vector<std::size_t> order(members_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](std::size_t a, std::size_t b)
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return rows_[a] < rows_[b]; });
  for (const std::size_t member : order) {
    start_ns_ = clock_.NowNs();
    if (members_[member] == nullptr || !members_[member]->BeginStep()) continue;
    running_ = true;
    last_ = member;
    return;
  }
}

}  // namespace flotilla::testing
