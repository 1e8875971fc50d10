// StepRunner: what one rank does with plans. The seam between those who bring plans
// (an executor's thread, a rank process) and the rank that computes them.
//
// Implementations: RankRunner, and a fake one for tests of rank processes. One thread
// at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "common/types/executor.h"
#include "common/types/plan.h"

namespace flotilla {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Forgets all sequences; the next plan is step 1 of `epoch`. Before the first Run, and
  // after every failed one.
  virtual void BeginEpoch(Epoch epoch) = 0;

  // Applies the next plan of the epoch and computes it. The result of a plan, in step
  // order, on the rank that gives results; none on others, nor while a pipeline fills.
  // DATA_LOSS: the digests differ; UNAVAILABLE: a tier cannot be read or written; else
  // the plan is not one that the state allows. The epoch is over then.
  virtual absl::StatusOr<std::optional<StepResult>> Run(const StepPlan& plan) = 0;

  // Between plans: moves on what other ranks have not got yet of earlier ones; false:
  // there is nothing, until the next Run.
  virtual bool Progress() { return false; }

  virtual const ExecutorDescription& description() const = 0;

  // The bytes of this rank.
  virtual std::int64_t weight_bytes() const = 0;
  virtual std::int64_t buffer_bytes() const = 0;
};

// How a group is lost whose plan failed with `status`.
inline Lost::Cause LostCauseOf(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return Lost::Cause::kDied;  // a tier's disk
  return absl::IsDataLoss(status) ? Lost::Cause::kDigest : Lost::Cause::kInvalidPlan;
}

}  // namespace flotilla
