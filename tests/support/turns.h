// Turns: lets several engines compute in turns, one step at a time, and adds up the time that
// the steps of each engine take.
//
// Tests use it to compare how long engines take for the same work. If the engines ran one after
// the other, the comparison would not be fair, because the other load of the machine changes
// within seconds. The next step belongs to the engine that has computed the fewest rows. So all
// engines progress equally and end together, even if one needs more steps.
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
  // Returns an executor whose steps take turns with those of the others; `inner` and this
  // object outlive it. Any number may join before the first of them starts.
  std::unique_ptr<StepExecutor> Join(StepExecutor* inner);

  // The time of the steps of member `member`, in the order of joining from 0.
  std::int64_t StepNs(std::size_t member) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Member;

  // Begins the next step. Of the members that have a step, it is that of the member that has
  // computed the fewest rows.
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SteadyClock clock_;
  mutable absl::Mutex mu_;
  std::vector<Member*> members_ ABSL_GUARDED_BY(mu_);  // null: it is gone
  std::vector<std::int64_t> step_ns_ ABSL_GUARDED_BY(mu_);
  std::vector<std::uint64_t> rows_ ABSL_GUARDED_BY(mu_);  // by member
  bool running_ ABSL_GUARDED_BY(mu_) = false;             // the step of `last_`
  std::size_t last_ ABSL_GUARDED_BY(mu_) = 0;  // the member whose step was the last to begin
  std::int64_t start_ns_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace flotilla::testing
