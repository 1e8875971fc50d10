// Simulation: a scheduler core, a worker group and their clients under one seed.
//
// Every choice (arrivals, lengths, cancels, deadlines, how late plans and
// results are, when a group dies and with what pool it returns) comes from the
// seed. After each event all invariants are checked; the first that fails ends
// the run with a message. One thread; nothing depends on time or addresses.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/core/scheduler_core.h"
#include "tests/sim/liveness.h"
#include "tests/sim/plan_hash.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_worker.h"
#include "tests/support/random.h"

namespace flotilla::testing {

using scheduler::SequenceState;

// A state of a sequence as the simulation sees it: a SequenceState, or kAbsent, which means
// that the sequence does not exist yet or has ended.
inline constexpr std::size_t kAbsent = 5, kSimStates = 6;
inline constexpr const char* kStateNames[kSimStates] = {"waiting", "pending", "prefill",
                                                        "decode",  "ending",  "absent"};

// The state of a sequence before an event and after it. An event can make several
// transitions at once (a plan preempts a request and starts it again), so a transition
// that is not in this list may happen.
struct SimTransition {
  SequenceState from, to;
  bool possible;  // true: it must happen in the test; false: it must never happen
};
inline constexpr SequenceState kGone{kAbsent};
inline constexpr SimTransition kTransitions[] = {
    {kGone, SequenceState::kWaiting, true},                    // admitted
    {kGone, SequenceState::kPending, true},                    // a beam forks
    {kGone, SequenceState::kPrefill, false},                   // opened before it was pending
    {kGone, SequenceState::kDecode, false},                    //
    {kGone, SequenceState::kEnding, false},                    //
    {SequenceState::kWaiting, SequenceState::kPending, true},  // its request is opened
    {SequenceState::kWaiting, SequenceState::kPrefill, true},  // and it, with a first chunk,
    {SequenceState::kWaiting, SequenceState::kDecode, true},   // or with all it knows
    {SequenceState::kWaiting, SequenceState::kEnding, true},   //
    {SequenceState::kWaiting, kGone, true},                    // cancelled, late, too large
    {SequenceState::kPending, SequenceState::kWaiting, true},  // preempted, or its group lost
    {SequenceState::kPending, SequenceState::kPrefill, true},  // forked, or for memory
    {SequenceState::kPending, SequenceState::kDecode, true},   //
    {SequenceState::kPending, SequenceState::kEnding, true},   // a beam's one token
    {SequenceState::kPending, kGone, true},                    // cancelled, or too late
    {SequenceState::kPrefill, SequenceState::kWaiting, true},  // preempted, or its group lost
    {SequenceState::kPrefill, SequenceState::kDecode, true},   // its last chunk
    {SequenceState::kPrefill, SequenceState::kEnding, true},   //
    {SequenceState::kPrefill, kGone, true},                    // cancelled, or too late
    {SequenceState::kDecode, SequenceState::kWaiting, true},   // preempted, or its group lost
    {SequenceState::kDecode, SequenceState::kEnding, false},   // a decode ends by its result
    {SequenceState::kDecode, kGone, true},                     // finished, cancelled, too late
    {SequenceState::kEnding, SequenceState::kWaiting, true},   // preempted, or its group lost
    {SequenceState::kEnding, SequenceState::kPrefill, true},   // a beam goes on
    {SequenceState::kEnding, SequenceState::kDecode, false},   // the result ends it
    {SequenceState::kEnding, kGone, true},                     // finished, or nobody follows it
};

// What can go wrong between the two sides. The test asserts that each of these happened.
enum class SimFault : std::uint8_t {
  kDiedIdle,            // no sequence was open
  kDiedPlanSent,        // the group died with a plan sent and not applied
  kDiedStepRunning,     // the group died with a plan applied and not completed
  kDiedResultSent,      // the group died with a result on its way
  kDiedInAllPhases,     // the group died with all three at once
  kPlanToTheDead,       // a plan was made before the loss was sent
  kLossNotSent,         // the next group was ready first
  kLateLoss,            // a loss of an older epoch came and was ignored
  kLateReady,           // a Ready of an older epoch came and was ignored
  kLateResult,          // a result of a lost epoch came before the next epoch; ignored
  kLateResultNewEpoch,  // a result of a lost epoch came in the next epoch; ignored
  kEpochRefused,        // a plan of a lost epoch came to the next group
  kStepRefused,         // a plan came twice
  kCancelAfterFinish,   // the cancel came when the result with the end was on its way
  kTooLargeForNewGroup,
  kPlanRefused,    // a plan was refused for a request whose next plans are refused too
  kDiedOfRequest,  // the group died of a request, which will kill the next one too
  kCount,
};
inline constexpr std::size_t kSimFaults = static_cast<std::size_t>(SimFault::kCount);

// How often each interesting thing happened; the test asserts that all did.
struct SimCoverage {
  scheduler::CoreCounters core;
  std::uint64_t steps = 0;
  // [from][to] SequenceState or kAbsent
  std::array<std::array<std::uint64_t, kSimStates>, kSimStates> transitions{};
  std::array<std::uint64_t, kSimFaults> faults{};  // by SimFault
  std::array<std::uint64_t, 5> cancelled_in{};     // sequences by SequenceState
  std::array<std::uint64_t, 5> lost_in{};          // sequences by SequenceState
  std::uint64_t refused_full = 0;
  std::uint64_t refused_wait = 0;  // refused for their predicted wait
  std::uint64_t refused_too_large = 0;
  std::uint64_t refused_draining = 0;
  std::uint64_t replayed = 0;         // arrived with an output prefix
  std::uint64_t prompt_only = 0;      // max_tokens 0
  std::uint64_t parallel = 0;         // several sequences
  std::uint64_t non_preemptible = 0;  // served after as many preemptions as one may have
  std::uint64_t beams = 0;            // beam searches
  std::uint64_t beams_served = 0;
  std::uint64_t large = 0;                // runs with long prompts
  std::uint64_t large_lookups = 0;        // tokens that those looked up in the prefix cache
  std::uint64_t large_found = 0;          // and found there
  std::uint64_t windowed = 0;             // runs with window groups
  std::uint64_t windowed_found = 0;       // tokens that those found in the prefix cache
  std::uint64_t windowed_read = 0;        // blocks that those read back from tiers
  std::uint64_t window_blocks = 0;        // blocks that window groups gave back
  std::uint64_t arrived_quarantined = 0;  // arrived while others were quarantined
  std::uint64_t ended_early = 0;          // ended for a deadline that had not passed
  std::uint64_t most_constraints = 0;     // that a plan has carried
  std::int64_t early_permille = 0;        // the most time that such a request had, of what it needs
  Liveness::Counts liveness;
  std::array<std::uint64_t, 7> stalls{};    // by StallReason
  std::array<std::uint64_t, 4> lags{};      // runs by lag
  std::array<std::uint64_t, 4> policies{};  // runs by policy

  void Add(const SimCoverage& other);
};

// The error of an invariant (docs/architecture.md) that does not hold.
absl::Status Broken(int invariant, absl::string_view what);

class Simulation {
 public:
  // The tiers below the KV pool: as the seed says, none, or one that has room for everything. In
  // the latter two cases the prefix cache is on.
  enum class Tiers { kOfSeed, kNone, kLarge };
  // `runs`: K and V are kept by runs (ExecutorDescription::run_tokens).
  explicit Simulation(std::uint64_t seed, Tiers tiers = Tiers::kOfSeed, bool runs = false);

  // Runs until `steps` plans were made, then lets all work finish and checks
  // that nothing is left. The error names the invariant and the tick.
  absl::Status Run(std::uint64_t steps);

  // A hash of all plans and events in their order.
  std::uint64_t trace_hash() const { return trace_hash_; }
  // A hash of every field of all plans in their order.
  std::uint64_t plan_hash() const { return plans_made_.value(); }
  const SimCoverage& coverage() const { return coverage_; }
  bool large() const { return large_; }

  // Runs until `steps` plans were made, and kills the group. The next one is like it, and nothing
  // else happens from then on, but for an arrival. Returns after how many plans the last of the
  // requests under way got a token or its end. `blamed`: the loss names the steps that the group
  // was computing. Up to the loss both runs are the same. None: the group has no place for all.
  struct Pause {
    std::uint64_t plans = 0;      // until the last of those that had a token
    std::uint64_t newcomer = 0;   // until the request that arrived after the loss
    std::uint64_t lag = 0;        // of the group
    std::uint64_t under_way = 0;  // sequences that the group was computing
    std::uint64_t waited = 0;     // requests that had a token
  };
  absl::StatusOr<std::optional<Pause>> PauseAfterLoss(std::uint64_t steps, bool blamed);

 private:
  // Makes one event happen.
  absl::Status Tick(bool arrivals);
  absl::Status Disturb();
  void Arrive(TokenizedRequest request);
  TokenizedRequest RandomRequest();
  CancelRequest RandomCancel();
  void CancelSome();
  absl::Status MakePlan();
  absl::Status CheckStall(const scheduler::PlanOutcome& outcome) const;
  std::optional<RequestId> FirstOpen() const;
  absl::Status CheckVictims(const std::optional<RequestId>& first) const;
  absl::Status CheckProgress();
  absl::Status CheckConstraints(const StepPlan& plan);
  absl::Status CheckLiveness(const StepPlan& plan, const scheduler::CoreSnapshot& before);
  // Checks that a request that is ended before its deadline could hardly have met it, by what steps
  // really cost at most.
  absl::Status CheckEarlyEnd(const SimClient& client);
  // Makes the plans that can be made now, and answers the oldest one.
  absl::Status PlanAndAnswer();
  absl::Status DeliverResult();
  // `refused`: the step whose plan the group refused; else it died.
  void KillGroup(std::optional<Step> refused = std::nullopt);
  // Notes what a group that dies is computing, which its loss will say.
  void NoteUnderWay();
  // Reports the loss, or the next group, to the core.
  absl::Status ReviveGroup();
  void ReportLoss();
  absl::Status NextGroup();
  absl::Status NextGroup(ExecutorDescription group);
  absl::Status LateMessage();
  absl::Status ApplyPlan();
  // Whether the group refuses the plan, because it opens a request that is always refused.
  bool Refuses(const StepPlan& plan);
  ExecutorDescription RandomGroup();
  void AddWindows(ExecutorDescription& group);
  absl::Status WindDown();
  void MakeLarge();

  absl::Status AfterEvent();
  void CountTransitions();
  void Count(SimFault fault, std::uint64_t times = 1) {
    coverage_.faults[static_cast<std::size_t>(fault)] += times;
  }
  absl::Status TakeEvents();
  absl::Status CompareMarks(const SimResult& result) const;
  absl::Status CompareWithWorker() const;
  const SimClient& Find(const RequestId& id) const { return clients_.at(id.counter); }
  void Trace(std::uint64_t word) { trace_hash_ = MixBits(trace_hash_ ^ word); }
  void TracePlan(const StepPlan& plan);

  Random random_;
  // The kind of traffic that this seed makes.
  scheduler::CoreOptions options_;
  ExecutorDescription group_;
  std::uint32_t arrive_one_in_, cancel_one_in_, kill_one_in_;
  std::uint32_t plan_weight_, apply_weight_, complete_weight_, deliver_weight_;
  bool tiers_;
  const Tiers fixed_tiers_;
  std::uint32_t wide_one_in_;
  worker::NgramOptions ngrams_;
  std::uint32_t prompt_bits_, output_bits_;
  bool long_outputs_;
  // A separate random stream, so that seeds without deaths by requests give the same runs as
  // before; and whether groups report which steps they died in.
  Random fatal_;
  bool blames_;
  const bool large_;  // one seed in 20 has prompts of up to 8,000 tokens
  bool refuses_;      // groups refuse plans with some requests
  // A separate random stream; one seed in three has models of which some layers keep a window.
  Random windows_;
  const bool windowed_;
  const bool runs_;
  // A separate random stream; one seed in four has requests with constraints, whose masks are
  // late now and then (SimWorker).
  Random constraints_;
  bool constrains_;
  std::vector<std::vector<TokenId>> openings_;  // prompts often begin with one

  std::optional<scheduler::SchedulerCore> core_;
  std::optional<Liveness> liveness_;
  std::int64_t now_ns_ = 0;
  std::uint64_t ticks_ = 0;

  Epoch epoch_{0};
  std::unique_ptr<SimWorker> worker_;        // null: the group is dead
  bool loss_sent_ = true;                    // the core knows that the group is dead
  std::vector<Step> started_;                // the steps in which the group died
  std::vector<SimWorker::Rows> fatal_rows_;  // that it ran in them
  bool results_lost_ = false;                // results of earlier steps were lost with it
  std::optional<Step> refused_;              // the plan that ended the epoch
  std::deque<StepPlan> plans_;               // sent, not applied
  std::deque<SimResult> results_;            // on their way back
  // Events of a lost epoch that come too late.
  std::optional<StepResult> stale_;
  std::optional<StepPlan> stale_plan_;

  std::map<std::uint64_t, SimClient> clients_;
  std::vector<std::uint64_t> live_;  // requests that have not ended, in order of arrival
  std::uint64_t next_id_ = 1;

  // The state of the check that the first sequence in the order of the policy makes progress.
  std::optional<RequestId> front_;
  std::uint64_t front_progress_ = 0;
  std::uint32_t front_stalled_ = 0;      // plans in which it made none
  std::uint32_t front_waits_ = 0;        // the same while copies were under way
  std::uint32_t front_quarantined_ = 0;  // the most requests quarantined meanwhile
  // The copies in plans that were not reported done, by id.
  std::map<std::uint64_t, BackgroundCopy> copying_;

  std::vector<scheduler::SequenceStatus> states_;  // after the last event
  std::uint64_t preemptions_then_ = 0;             // the same
  std::uint64_t preemptions_ = 0;                  // that ended requests report

  SimCoverage coverage_;
  std::uint64_t trace_hash_ = 0;
  PlanHash plans_made_;
};

}  // namespace flotilla::testing
