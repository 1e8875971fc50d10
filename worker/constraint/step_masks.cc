#include "worker/constraint/step_masks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

// How many rounds count where a sequence comes back. The scheduler leaves out fewer, unless it
// preempts.
constexpr std::uint64_t kMostRounds = 8;

}  // namespace

void MaskCulprit::Set(std::shared_ptr<MaskLateness> culprit, std::uint64_t round) {
  absl::MutexLock lock(&mu_);
  culprit_ = std::move(culprit);
  if (round > 0) charged_round_ = std::max(charged_round_, round - 1);
}

void MaskCulprit::Charge(std::int64_t ns, std::uint64_t round) {
  absl::MutexLock lock(&mu_);
  if (culprit_ != nullptr) culprit_->ns += ns;
  charged_round_ = std::max(charged_round_, round);
}

std::int64_t MaskCulprit::Unwaited(std::uint64_t late_round, std::uint64_t round,
                                   std::int64_t round_ns, std::int64_t late_ns) {
  absl::MutexLock lock(&mu_);
  const std::uint64_t from = std::min(std::max(late_round, charged_round_), round);
  const auto rounds = static_cast<std::int64_t>(std::min(round - from, kMostRounds));
  return std::clamp<std::int64_t>(late_ns, 0, round_ns * rounds);
}

MaskOutcome StepMasks::Wait(std::size_t item, std::size_t row, absl::Duration patience) {
  const std::int64_t begin_ns = clock_.NowNs();
  MaskLateness& lateness = *items_[item].lateness;
  const std::size_t place = items_[item].outputs.size() + row + 1;
  const bool waits = !has_others_ || lateness.late_at != place;
  {
    absl::MutexLock lock(&mu_);
    const Progress& wanted = progress_[item];
    const Wanted condition{wanted, row};
    mu_.AwaitWithTimeout(absl::Condition(&condition, &Wanted::Decided),
                         waits ? patience : absl::ZeroDuration());
    if (wanted.ready > row) {
      return {.state = MaskOutcome::State::kReady, .allowed = Row(item, row)};
    }
    if (!wanted.refusal.ok()) {
      return {.state = MaskOutcome::State::kRefused, .refusal = wanted.refusal};
    }
    if (wanted.compiling) {
      const std::int64_t waited_ns = clock_.NowNs() - items_[item].entry->since_ns();
      if (absl::Nanoseconds(waited_ns) < compile_limit_) return {};
      return {.state = MaskOutcome::State::kRefused,
              .refusal = absl::ResourceExhaustedError(
                  absl::StrCat("The grammar is refused: it was not compiled within ",
                               absl::FormatDuration(compile_limit_)))};
    }
  }
  const std::int64_t now_ns = clock_.NowNs();
  Charge(waits ? now_ns - begin_ns
               : culprit_->Unwaited(lateness.late_round, round_, absl::ToInt64Nanoseconds(patience),
                                    now_ns - lateness.late_ns));
  lateness.late_at = place;
  lateness.late_ns = now_ns;
  lateness.late_round = round_;
  if (!IsLateForGood(items_[item])) return {.was_awaited = waits, .allowed = {}, .refusal = {}};
  lateness.is_over = true;
  return {.state = MaskOutcome::State::kRefused,
          .refusal = absl::DeadlineExceededError("The grammar's masks take too long")};
}

void StepMasks::AwaitGrammars(absl::Duration patience) {
  const auto one_is_compiled = [](std::vector<Progress>* items) {
    return !std::ranges::all_of(*items, &Progress::compiling);
  };
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(+one_is_compiled, &progress_), patience);
}

// Rows that wait at the same time delay the step once.
void StepMasks::Charge(std::int64_t waited_ns) {
  std::int64_t more = 0;
  {
    absl::MutexLock lock(&mu_);
    more = std::max<std::int64_t>(waited_ns - charged_ns_, 0);
    charged_ns_ += more;
  }
  if (more > 0) culprit_->Charge(more, round_);
}

bool StepMasks::IsLateForGood(const Item& item) const {
  return absl::Nanoseconds(item.lateness->ns.load()) >= late_limit_;
}

bool StepMasks::IsOver(std::size_t item) {
  absl::MutexLock lock(&mu_);
  return progress_[item].ready > 0 || !progress_[item].refusal.ok();
}

void StepMasks::AddReady(std::size_t item) {
  absl::MutexLock lock(&mu_);
  progress_[item].compiling = false;
  ++progress_[item].ready;
}

void StepMasks::SetCompiling(std::size_t item, bool compiling) {
  absl::MutexLock lock(&mu_);
  progress_[item].compiling = compiling;
}

void StepMasks::Refuse(std::size_t item, absl::Status refusal) {
  absl::MutexLock lock(&mu_);
  progress_[item].compiling = false;
  progress_[item].refusal = std::move(refusal);
}

}  // namespace flotilla::worker
