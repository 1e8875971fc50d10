// Turns: lets several engines compute in turns, and adds up the time that each takes by the clock,
// waits included.
//
// Tests use it to compare how long engines take for the same work. If the engines ran one after
// the other, the comparison would not be fair, because the other load of the machine changes
// within seconds. An engine keeps its turn for some rows, also while it waits for its next plan or
// for a copy, so its waits count. The next turn belongs to the engine that has computed the fewest
// rows. So all engines progress equally and end together, even if one needs more steps. Plans and
// copies that are under way when a turn ends go on beside the other engine: they are those of two
// steps among the many of a turn.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/clock.h"
#include "common/types/executor.h"

namespace flotilla::testing {

class Turns {
 public:
  explicit Turns(std::uint64_t rows_per_turn = 2048) : rows_per_turn_(rows_per_turn) {}

  // Returns an executor whose steps take turns with those of the others; `inner` and this
  // object outlive it. Any number may join before the first of them starts. A member takes part
  // from its first plan on.
  std::unique_ptr<StepExecutor> Join(StepExecutor* inner);

  // Member `member`, in the order of joining from 0, has done its work: nobody waits for it, and
  // its time stops. It takes part again when it gets a plan.
  void Leave(std::size_t member) ABSL_LOCKS_EXCLUDED(mu_);

  // The time of the member's turns so far, by the clock. It has left.
  std::int64_t ClockNs(std::size_t member) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Member;

  // Begins the next step if one can begin.
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Left(std::size_t member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  struct Seat {
    Member* member = nullptr;  // null: it is gone
    bool takes_part = false;
    std::uint64_t rows = 0;
    std::int64_t clock_ns = 0;
  };

  const SteadyClock clock_;
  const std::uint64_t rows_per_turn_;
  mutable absl::Mutex mu_;
  std::vector<Seat> seats_ ABSL_GUARDED_BY(mu_);
  // The turn: whose it is (none: nobody takes part), since when, and its rows so far.
  std::optional<std::size_t> turn_ ABSL_GUARDED_BY(mu_);
  std::int64_t turn_start_ns_ ABSL_GUARDED_BY(mu_) = 0;
  std::uint64_t turn_rows_ ABSL_GUARDED_BY(mu_) = 0;
  // The member whose step runs. It may have left meanwhile.
  std::optional<std::size_t> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::testing
