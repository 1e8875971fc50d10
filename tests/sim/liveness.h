// Liveness: checks plan by plan that nobody waits without a bound (docs/scheduler.md, "Who waits
// for whom").
//
// It counts for itself: it sees requests, the states of sequences, their tables and the plans, and
// none of the scheduler's counters. It judges only a request whose place in the order is beyond
// doubt, by priority, deadline and arrival alone; what a policy predicts and what fair share
// charges it does not know. So it never blames the scheduler wrongly, and over many seeds it sees
// each rule at work.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
    std::uint64_t started = 0;           // requests that were first and fit, and started at once
    std::uint64_t judged = 0;            // waiting requests that were first of those that wait
    std::uint64_t overtaken = 0;         // prompt tokens that started before one of them
    std::uint64_t overtaken_behind = 0;  // the same of requests that wait behind the first
    std::uint64_t most_overtaken_permille = 0;  // of what is allowed, where it is more than 0
    std::uint64_t most_left_out =
        0;  // plans in a row that one sequence that decodes was left out of
  };

  Liveness(const scheduler::CoreOptions& options, absl::string_view policy, FindClient find_client);

  // A new worker group, which knows no sequence.
  void Begin(const ExecutorDescription& group);
  // Must be called before each plan, with the states after the last event.
  void BeforePlan(const std::vector<scheduler::SequenceStatus>& states,
                  const std::vector<scheduler::OpenSequenceView>& open);
  // Must be called for each victim of the plan, before AfterPlan.
  void NotePreemption(const RequestId& victim) {
    ++waiters_[victim].preemptions;
    preempted_.insert(victim);
  }
  // Must be called after a plan was made. `copying` are the blocks of
  // background copies that were under way before it, and `loading` whether some of them, or of this
  // plan's, fill blocks. `unclear`: requests are quarantined or held back, so that others may have
  // to wait for them.
  absl::Status AfterPlan(const StepPlan& plan, const std::vector<scheduler::SequenceStatus>& states,
                         std::uint64_t copying, bool loading, bool unclear);

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
  using States = std::vector<scheduler::SequenceStatus>;

  // 0: none; 1: its blocks are reserved; 2: non-preemptible.
  int Protection(const Seen& seen) const;
  // Whether the place of the request is known.
  bool IsClear(const Seen& seen) const;
  bool SurelyBefore(const Seen& a, const Seen& b) const;
  bool MayShareAPrefix(const Seen& a, const Seen& b) const;
  std::uint64_t Blocks(std::uint32_t prompt_tokens, std::uint32_t outputs,
                       std::uint32_t width) const;
  // The blocks that the scheduler may want to be free for the request, in addition to those that it
  // has.
  std::uint64_t Wants(const Seen& seen) const;
  static std::uint32_t Width(const Seen& seen);
  bool Fits(const Seen& seen, std::uint64_t copying) const;
  bool MeasuresDecodes(const StepPlan& plan);
  bool IsFirstAndFits(const Seen& first, std::uint64_t copying) const;
  absl::Status CheckLeftOut(const StepPlan& plan, bool unclear);
  absl::Status CheckOvertaken(const RequestId& id, const Seen& waits, bool is_first,
                              const StepPlan& plan);

  const scheduler::CoreOptions options_;
  const std::string policy_;
  const FindClient find_client_;
  ExecutorDescription group_;
  std::map<RequestId, Seen> seen_;  // before the plan
  std::map<RequestId, Waiter> waiters_;
  std::set<RequestId> preempted_;  // in this plan
  // By sequence, in how many of its plans in a row it was deferred, and the last of them.
  std::map<SequenceHandle, std::pair<std::uint64_t, Step>> left_out_;
  std::uint64_t used_ = 0;               // blocks in tables, before the plan
  std::uint64_t places_ = 0;             // taken, before the plan
  std::uint64_t plans_with_chunks_ = 0;  // since a plan without was excused
  Counts counts_;
};

}  // namespace flotilla::testing
