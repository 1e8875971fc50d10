#include "worker/exec/local_group.h"

#include <algorithm>
#include <utility>

#include "common/rt/cpu_quota.h"

namespace flotilla::worker {

absl::StatusOr<std::unique_ptr<LocalGroup>> LocalGroup::Create(
    std::shared_ptr<const model::Checkpoint> file, const RankOptions& options, const Clock* clock) {
  auto group = std::unique_ptr<LocalGroup>(new LocalGroup());
  const absl::Status status = group->Load(std::move(file), options, clock);
  if (!status.ok()) return status;
  return group;
}

absl::Status LocalGroup::Load(std::shared_ptr<const model::Checkpoint> file,
                              const RankOptions& options, const Clock* clock) {
  auto layout = PlanGroup(*file, options);
  if (!layout.ok()) return layout.status();
  auto created =
      SharedRegion::Create(SharedMemoryCommunicator::RegionBytes(layout->shape, layout->limits));
  if (!created.ok()) return created.status();
  const auto region = std::make_shared<const SharedRegion>(*std::move(created));
  const std::uint32_t ranks = layout->shape.ranks();
  const bool spin = static_cast<int>(ranks) * std::max(1, options.threads) <= AvailableCpus();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    communicators_.push_back(std::make_unique<SharedMemoryCommunicator>(region, layout->shape, rank,
                                                                        layout->limits, spin));
    if (communicators_.back()->head()) head_ = rank;
  }
  runners_.resize(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads_.emplace_back([this, rank] { Loop(rank); });
  }
  std::vector<absl::Status> results(ranks);
  OnAll([&](std::size_t rank) {
    RankOptions own = options;
    own.local_rank = static_cast<int>(rank);
    // What a thread does for its GPU may wait, with a lock of the process, for what that GPU does;
    // and that for what another thread, without the lock, enqueues for the GPU of its rank.
    if (!own.open_nccl) {
      own.open_nccl = [] { return absl::FailedPreconditionError("the ranks share a process"); };
    }
    auto runner = RankRunner::Create(file, own, clock,
                                     {communicators_[rank].get(), communicators_[rank].get()});
    results[rank] = runner.status();
    if (runner.ok()) {
      runners_[rank] = *std::move(runner);
    } else {
      communicators_[rank]->Abort();
    }
  });
  // Reports the cause rather than an error that only says that another rank has failed.
  absl::Status worst;
  for (const absl::Status& result : results) {
    if (worst.ok() || absl::IsUnavailable(worst)) worst = result.ok() ? worst : result;
  }
  return worst;
}

LocalGroup::~LocalGroup() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void LocalGroup::BeginEpoch(Epoch epoch) {
  OnAll([&](std::size_t rank) { runners_[rank]->BeginEpoch(epoch); });
  if (!communicators_[0]->aborted()) return;
  for (const auto& communicator : communicators_) communicator->Reset();
}

absl::StatusOr<std::optional<StepResult>> LocalGroup::Run(const StepPlan& plan) {
  absl::StatusOr<std::optional<StepResult>> result;
  absl::Status failure;  // the first failure of a rank other than the head
  absl::Mutex mu;
  OnAll([&](std::size_t rank) {
    auto own = runners_[rank]->Run(plan);
    absl::MutexLock lock(&mu);
    if (!own.ok()) {
      if (failure.ok()) failure = own.status();
      communicators_[rank]->Abort();
    }
    if (rank == head_) result = std::move(own);
  });
  if (!failure.ok()) return failure;
  return result;
}

bool LocalGroup::failed() const {
  return std::any_of(runners_.begin(), runners_.end(),
                     [](const auto& runner) { return runner->failed(); });
}

RankDevice LocalGroup::device() const {
  RankDevice all;
  for (const auto& runner : runners_) all.Add(runner->device());
  return all;
}

std::int64_t LocalGroup::weight_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& runner : runners_) bytes += runner->weight_bytes();
  return bytes;
}

std::int64_t LocalGroup::buffer_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& runner : runners_) bytes += runner->buffer_bytes();
  return bytes;
}

void LocalGroup::OnAll(absl::FunctionRef<void(std::size_t)> fn) {
  absl::MutexLock lock(&mu_);
  work_ = &fn;
  running_ = threads_.size();
  ++round_;
  mu_.Await(absl::Condition(
      +[](std::size_t* running) { return *running == 0; }, &running_));
}

void LocalGroup::Loop(std::size_t rank) {
  std::uint64_t seen = 0;
  const auto wakes = [&]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_ || round_ != seen; };
  while (true) {
    const absl::FunctionRef<void(std::size_t)>* work = nullptr;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&wakes));
      if (stopped_) return;
      seen = round_;
      work = work_;
    }
    (*work)(rank);
    absl::MutexLock lock(&mu_);
    --running_;
  }
}

}  // namespace flotilla::worker
