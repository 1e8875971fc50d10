// Liveness: checks plan by plan that nobody waits without a bound (docs/scheduler.md, "Who waits
// for whom").
//
// It counts for itself: it sees requests, the states of sequences, their tables and the plans, and
// none of the scheduler's counters. Which rows are fatal it learns from the groups that die. It
// judges only a request whose place in the order is beyond doubt, by priority, deadline and arrival
// alone; what a policy predicts and what fair share charges it does not know. So it never blames
// the scheduler wrongly, and over many seeds it sees each rule at work.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/core/scheduler_core.h"
#include "tests/sim/sim_client.h"

namespace flotilla::testing {

class Liveness {
 public:
  using FindClient = std::function<const SimClient&(const RequestId&)>;

  // What happened, summed over the plans of a run.
  struct Counts {
    std::uint64_t started = 0;              // requests that were first and fit, and started at once
    std::uint64_t started_quarantined = 0;  // of these, while others were quarantined
    std::uint64_t waited_isolated = 0;      // plans that such a request waited for isolated steps
    std::uint64_t judged = 0;               // waiting requests that were first of those that wait
    std::uint64_t overtaken = 0;            // prompt tokens that started before one of them
    std::uint64_t overtaken_behind = 0;     // the same of requests that wait behind the first
    std::uint64_t most_overtaken_permille = 0;  // of what is allowed, where it is more than 0
    std::uint64_t most_left_out =
        0;  // plans in a row that one sequence that decodes was left out of
  };

  Liveness(const scheduler::CoreOptions& options, absl::string_view policy, FindClient find_client);

  // A new worker group, which knows no sequence.
  void Begin(const ExecutorDescription& group);
  // The group died while it ran these rows of the request, here or on another replica: from now on
  // they run in isolated steps, until their results are in.
  void NoteFatal(const RequestId& id, std::uint32_t begin, std::uint32_t end);
  // The group died, and results of earlier steps were lost with it, so that the scheduler knows
  // less of its rows: nothing is judged until nobody is quarantined any more.
  void NoteUnknownFatal();
  // Must be called after each event.
  void NoteStates(const std::vector<scheduler::SequenceStatus>& states);
  // Must be called before each plan, with the states after the last event.
  void BeforePlan(const std::vector<scheduler::SequenceStatus>& states,
                  const std::vector<scheduler::OpenSequenceView>& open);
  // Must be called for each victim of the plan, before AfterPlan.
  void NotePreemption(const RequestId& victim) {
    ++waiters_[victim].preemptions;
    preempted_.insert(victim);
  }
  // What else is going on when a plan is made.
  struct Situation {
    std::uint64_t copying = 0;  // blocks of background copies that were under way before it
    bool loading = false;       // some of these copies fill blocks
    bool quarantined = false;   // requests are quarantined, so the step may be isolated
    bool unclear = false;       // requests are held back, so that others may have to wait for them
  };
  // Must be called after a plan was made.
  absl::Status AfterPlan(const StepPlan& plan, const std::vector<scheduler::SequenceStatus>& states,
                         Situation now);

  const Counts& counts() const { return counts_; }

 private:
  // A live request before the plan.
  struct Seen {
    const SimClient* client = nullptr;
    std::uint32_t sequences = 0;
    bool waiting = true;         // not open
    bool prompt_is_due = false;  // open, and some of what it knows is in no plan yet
    std::uint64_t blocks = 0;    // in its tables
  };
  // What is remembered of a request that has not ended.
  struct Waiter {
    std::uint32_t preemptions = 0;
    std::uint64_t overtaken = 0;  // prompt tokens of later requests, since it last started
  };
  // Rows of a request that a group died of, or might have.
  struct Fatal {
    std::uint32_t begin = 0, end = 0;
  };
  // The next row of an open sequence.
  struct NextRow {
    RequestId request;
    std::uint32_t position = 0;
  };
  using States = std::vector<scheduler::SequenceStatus>;

  // 0: none; 1: its blocks are reserved; 2: non-preemptible.
  int Protection(const Seen& seen) const;
  // Whether the place of the request is known.
  bool IsClear(const Seen& seen) const;
  // Whether a group died while it ran the request, here or on another replica.
  static bool HasDied(const Seen& seen);
  bool SurelyBefore(const Seen& a, const Seen& b) const;
  bool IsQuarantined(const Seen& seen) const;
  // Whether the request is opened for an isolated step, while others are quarantined; nullopt: it
  // is not known.
  std::optional<bool> StartsIsolated(const Seen& seen, const OpenSequence& open) const;
  // Whether `first` goes before `other`, or `other` is quarantined and hides nobody.
  bool IsNotBehind(const Seen& first, const Seen& other) const;
  bool MayShareAPrefix(const Seen& a, const Seen& b) const;
  std::uint64_t Blocks(std::uint32_t prompt_tokens, std::uint32_t outputs,
                       std::uint32_t width) const;
  // The blocks that the scheduler may want to be free for the request, in addition to those that it
  // has.
  std::uint64_t Wants(const Seen& seen) const;
  static std::uint32_t Width(const Seen& seen);
  // Whether it fits beside all that run and all quarantined ones that wait.
  bool Fits(const Seen& seen, std::uint64_t copying) const;
  // Whether the step is shared, and has rows of a quarantined prompt that may go before the
  // request.
  bool QuarantinedGoesFirst(const Seen& first, const StepPlan& plan) const;
  absl::Status CheckFirst(const RequestId& id, const StepPlan& plan, bool quarantined);
  bool MeasuresDecodes(const StepPlan& plan);
  bool IsFirstAndFits(const Seen& first, std::uint64_t copying) const;
  absl::Status CheckLeftOut(const StepPlan& plan, bool unclear);
  absl::Status CheckOvertaken(const RequestId& id, const Seen& waits, bool is_first,
                              bool quarantined, const StepPlan& plan);

  const scheduler::CoreOptions options_;
  const std::string policy_;
  const FindClient find_client_;
  ExecutorDescription group_;
  std::map<RequestId, Seen> seen_;  // before the plan
  std::map<RequestId, Waiter> waiters_;
  std::map<RequestId, Fatal> fatal_;
  bool unknown_fatal_ = false;
  std::map<SequenceHandle, NextRow> next_rows_;  // before the plan
  // A request that was first and fit, and in how many plans in a row it had no row all the same.
  std::pair<RequestId, std::uint64_t> passed_over_;
  std::set<RequestId> preempted_;  // in this plan
  // By sequence, in how many of its plans in a row it was deferred, and the last of them.
  std::map<SequenceHandle, std::pair<std::uint64_t, Step>> left_out_;
  std::uint64_t used_ = 0;               // blocks in tables, before the plan
  std::uint64_t places_ = 0;             // taken, before the plan
  std::uint64_t plans_with_chunks_ = 0;  // since a plan without was excused
  Counts counts_;
};

}  // namespace flotilla::testing
