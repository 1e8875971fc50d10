#include "tests/support/turns.h"

#include <utility>

namespace flotilla::testing {

class Turns::Member final : public StepExecutor, private ExecutorListener {
 public:
  Member(Turns* turns, std::size_t index, StepExecutor* inner)
      : turns_(turns), index_(index), inner_(inner) {}
  ~Member() override ABSL_LOCKS_EXCLUDED(turns_->mu_) {
    absl::MutexLock lock(&turns_->mu_);
    turns_->seats_[index_].member = nullptr;
    turns_->Left(index_);
    turns_->Next();
  }

  absl::Status Start(ExecutorListener* listener) override {
    listener_ = listener;
    return inner_->Start(this);
  }

  absl::Status Execute(StepPlan plan) override ABSL_LOCKS_EXCLUDED(turns_->mu_) {
    absl::MutexLock lock(&turns_->mu_);
    plans_.push_back(std::move(plan));
    turns_->seats_[index_].takes_part = true;
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
    if (turns_->running_ == index_) {
      turns_->seats_[index_].rows += rows;
      turns_->turn_rows_ += rows;
      turns_->running_.reset();
    }
    if (forget) {
      plans_.clear();
      turns_->Left(index_);
    }
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
  auto member = std::make_unique<Member>(this, seats_.size(), inner);
  seats_.push_back({.member = member.get()});
  return member;
}

void Turns::Leave(std::size_t member) {
  absl::MutexLock lock(&mu_);
  Left(member);
  Next();
}

std::int64_t Turns::ClockNs(std::size_t member) const {
  absl::MutexLock lock(&mu_);
  return seats_[member].clock_ns;
}

void Turns::Left(std::size_t member) {
  seats_[member].takes_part = false;
  if (turn_ == member) FinishTurn();
}

void Turns::FinishTurn() {
  seats_[*turn_].clock_ns += clock_.NowNs() - turn_start_ns_;
  turn_.reset();
}

void Turns::Next() {
  if (running_.has_value()) return;
  if (turn_.has_value() && turn_rows_ >= rows_per_turn_) FinishTurn();
  if (!turn_.has_value()) {
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      if (!seats_[i].takes_part) continue;
      if (!turn_.has_value() || seats_[i].rows < seats_[*turn_].rows) turn_ = i;
    }
    if (!turn_.has_value()) return;
    turn_start_ns_ = clock_.NowNs();
    turn_rows_ = 0;
  }
  if (seats_[*turn_].member->BeginStep()) running_ = turn_;
}

}  // namespace flotilla::testing
