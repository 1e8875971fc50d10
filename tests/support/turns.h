// Turns: several engines compute in turns, a step at a time, and the time that the steps
// of each take is added up.
//
// To compare how long engines take for the same work: one after the other they would meet
// another machine, as what else goes on there changes within seconds. Whoever has computed
// fewest rows is next, so all are equally far at any time, and end together, also if one
// needs more steps for it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/clock.h"
#include "common/types/executor.h"

namespace flotilla::testing {

class Turns {
 public:
  // An executor whose steps take their turns; `inner` and this outlive it. Any number, before
  // the first of them starts.
  std::unique_ptr<StepExecutor> Join(StepExecutor* inner);

  // Of the steps of the `member`-th that joined, from 0.
  std::int64_t StepNs(std::size_t member) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Member;

  // Begins the next step: of the member that has computed least, of those that have one.
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SteadyClock clock_;
  mutable absl::Mutex mu_;
  std::vector<Member*> members_ ABSL_GUARDED_BY(mu_);  // null: gone
  std::vector<std::int64_t> step_ns_ ABSL_GUARDED_BY(mu_);
  std::vector<std::uint64_t> rows_ ABSL_GUARDED_BY(mu_);  // that each has computed
  bool running_ ABSL_GUARDED_BY(mu_) = false;             // the step of `last_`
  std::size_t last_ ABSL_GUARDED_BY(mu_) = 0;  // the member whose step was the last to begin
  std::int64_t start_ns_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace flotilla::testing
