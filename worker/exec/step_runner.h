// StepRunner: what one rank does with plans. It is the interface between what brings
// plans (an executor's thread, a rank process) and the rank that computes them.
//
// Implementations: RankRunner, LocalGroup, and a fake one for tests of rank processes. One
// thread at a time calls it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "worker/exec/rank_device.h"

namespace flotilla::worker {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Forgets all sequences; the next plan is step 1 of `epoch`. The caller calls it before
  // the first Run and after every failed Run.
  virtual void BeginEpoch(Epoch epoch) = 0;

  // Applies the next plan of the epoch and computes it. On the rank that gives results it
  // returns the results of plans in step order. It returns none on other ranks, or while a
  // pipeline fills. After an error the epoch is over. DATA_LOSS: the digests differ;
  // UNAVAILABLE: a tier cannot be read or written; ABORTED: a rank's backend failed; any other
  // code: the state does not allow the plan.
  virtual absl::StatusOr<std::optional<StepResult>> Run(const StepPlan& plan) = 0;

  // Whether what computes has failed. No later plan can succeed: the owner makes a new runner, or
  // ends its process. After an ABORTED that another rank caused, this is known after BeginEpoch.
  virtual bool failed() const { return false; }

  // Called between plans: moves on what other ranks have not received yet about earlier
  // plans. Returns false if there is nothing to do until the next Run.
  virtual bool Progress() { return false; }

  virtual const ExecutorDescription& description() const = 0;

  virtual RankDevice device() const = 0;
  // The bytes of this rank.
  virtual std::int64_t weight_bytes() const = 0;
  virtual std::int64_t buffer_bytes() const = 0;
};

// The cause of a loss when a plan failed with `status`.
inline Lost::Cause LostCauseOf(const absl::Status& status) {
  // A tier's disk, or a backend.
  if (absl::IsUnavailable(status) || absl::IsAborted(status)) return Lost::Cause::kDied;
  return absl::IsDataLoss(status) ? Lost::Cause::kDigest : Lost::Cause::kInvalidPlan;
}

}  // namespace flotilla::worker
