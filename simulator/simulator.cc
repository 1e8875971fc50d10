#include "simulator/simulator.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/core/scheduler_core.h"
#include "simulator/variants.h"

namespace flotilla::simulator {
namespace {

// A message on its way from one side to the other.
template <class T>
struct Letter {
  std::int64_t at_ns;
  T content;
};

class VirtualRun {
 public:
  VirtualRun(StepRunner& runner, const Machine& machine, const Workload& workload,
             const SimulationOptions& options, std::unique_ptr<scheduler::OrderPolicy> policy)
      : workload_(workload),
        options_(options),
        block_tokens_(machine.block_tokens),
        core_(options.core, std::move(policy)),
        description_(Describe(machine, options.core)),
        group_(Epoch(1), description_, workload, runner) {}

  absl::StatusOr<RunRecord> ToTheEnd();

 private:
  std::optional<std::int64_t> NextNs() const;
  absl::Status DeliverResults();
  void Arrive();
  void Admit(std::uint32_t index);
  void Think(std::uint32_t index);
  void MakePlans();
  absl::Status RunGroup();
  void TakeEvents();
  void Take(const TokenEvent& event);
  void Take(const RequestEnd& event);
  // The positions that fit into so many blocks, if all KV groups keep them.
  std::uint64_t PositionsOf(std::uint64_t blocks) const {
    return blocks * block_tokens_ / description_.groups.size();
  }
  void AccountUntil(std::int64_t now_ns);
  void Observe();
  absl::Status Finish();

  const Workload& workload_;
  const SimulationOptions& options_;
  const std::uint32_t block_tokens_;
  scheduler::SchedulerCore core_;
  const ExecutorDescription description_;
  VirtualGroup group_;
  RunRecord record_;

  std::int64_t now_ns_ = 0;
  std::uint32_t next_ = 0;  // the request that is the next to arrive, or to get a user
  // Closed loop: the requests whose users think, by the time of their arrival.
  using Due = std::pair<std::int64_t, std::uint32_t>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::uint64_t ended_ = 0;
  bool changed_ = true;  // the core got an event since its last plan
  std::optional<std::int64_t> wake_ns_;
  std::deque<Letter<StepPlan>> plans_;
  std::deque<Letter<StepResult>> results_;

  // The state after the last event.
  scheduler::CoreSnapshot snapshot_;
  std::uint64_t used_slots_ = 0, wasted_slots_ = 0;
};

absl::StatusOr<RunRecord> VirtualRun::ToTheEnd() {
  record_.requests.resize(workload_.requests.size());
  record_.contended_tokens.resize(workload_.tenants.size());
  record_.memory.pool = PositionsOf(description_.block_count - 1);
  while (next_ < workload_.concurrency) Think(next_++);
  if (absl::Status s = core_.Ready(Epoch(1), description_); !s.ok()) return s;
  std::uint64_t events = 0;
  while (const std::optional<std::int64_t> next = NextNs()) {
    AccountUntil(*next);
    if (absl::Status s = DeliverResults(); !s.ok()) return s;
    Arrive();
    MakePlans();
    TakeEvents();
    if (absl::Status s = RunGroup(); !s.ok()) return s;
    if (options_.check_invariants) {
      if (absl::Status s = core_.CheckInvariants(); !s.ok()) return s;
    }
    if (options_.progress != nullptr && ++events % options_.progress_events == 0 &&
        !options_.progress({now_ns_, ended_, workload_.requests.size()})) {
      return absl::CancelledError("the simulation was stopped");
    }
  }
  if (absl::Status s = Finish(); !s.ok()) return s;
  return std::move(record_);
}

// The time of the next event; none: there is none.
std::optional<std::int64_t> VirtualRun::NextNs() const {
  std::optional<std::int64_t> next = group_.NextNs(now_ns_);
  const auto consider = [&next](std::int64_t at_ns) {
    if (!next.has_value() || at_ns < *next) next = at_ns;
  };
  if (!plans_.empty()) consider(plans_.front().at_ns);
  if (!results_.empty()) consider(results_.front().at_ns);
  if (wake_ns_.has_value()) consider(std::max(now_ns_, *wake_ns_));
  if (changed_) consider(now_ns_);
  if (!due_.empty()) consider(std::max(now_ns_, due_.top().first));
  if (workload_.concurrency == 0 && next_ < workload_.requests.size()) {
    consider(std::max(now_ns_, workload_.requests[next_].arrival_ns));
  }
  return next;
}

absl::Status VirtualRun::DeliverResults() {
  while (!results_.empty() && results_.front().at_ns <= now_ns_) {
    if (absl::Status s = core_.Apply(results_.front().content); !s.ok()) return s;
    results_.pop_front();
    changed_ = true;
  }
  return absl::OkStatus();
}

void VirtualRun::Arrive() {
  while (!due_.empty() && due_.top().first <= now_ns_) {
    Admit(due_.top().second);
    due_.pop();
  }
  if (workload_.concurrency > 0) return;
  while (next_ < workload_.requests.size() && workload_.requests[next_].arrival_ns <= now_ns_) {
    Admit(next_++);
  }
}

void VirtualRun::Think(std::uint32_t index) {
  if (index >= workload_.requests.size()) return;
  due_.emplace(now_ns_ + workload_.requests[index].think_ns, index);
}

void VirtualRun::Admit(std::uint32_t index) {
  const SimulatedRequest& request = workload_.requests[index];
  record_.requests[index].arrival_ns = now_ns_;
  const std::uint32_t room = description_.max_context > request.prompt_tokens
                                 ? description_.max_context - request.prompt_tokens
                                 : 1;
  core_.Submit(now_ns_, MakeRequest(workload_, index, now_ns_, options_.lengths_known,
                                    std::min(options_.max_tokens, room)));
  changed_ = true;
}

void VirtualRun::MakePlans() {
  const bool woken = wake_ns_.has_value() && *wake_ns_ <= now_ns_;
  if (!changed_ && !woken) return;
  changed_ = false;
  for (;;) {
    scheduler::PlanOutcome outcome = core_.Plan(now_ns_);
    wake_ns_ = outcome.wake_ns;
    if (!outcome.plan.has_value()) break;
    plans_.push_back({now_ns_ + options_.round_trip_ns / 2, *std::move(outcome.plan)});
  }
  Observe();
}

absl::Status VirtualRun::RunGroup() {
  while (!plans_.empty() && plans_.front().at_ns <= now_ns_) {
    group_.Receive(std::move(plans_.front().content));
    plans_.pop_front();
  }
  const std::optional<std::int64_t> next = group_.NextNs(now_ns_);
  if (!next.has_value() || *next > now_ns_) return absl::OkStatus();
  absl::StatusOr<std::optional<StepResult>> result = group_.Advance(now_ns_);
  if (!result.ok()) return result.status();
  if (!result->has_value()) return absl::OkStatus();
  const std::int64_t back_ns = options_.round_trip_ns - options_.round_trip_ns / 2;
  results_.push_back({now_ns_ + back_ns, **std::move(result)});
  return absl::OkStatus();
}

void VirtualRun::TakeEvents() {
  for (const EngineEvent& event : core_.TakeEvents()) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) Take(*token);
    if (const auto* end = std::get_if<RequestEnd>(&event)) Take(*end);
  }
}

void VirtualRun::Take(const TokenEvent& event) {
  const auto index = static_cast<std::uint32_t>(event.request.counter);
  if (event.sequence.value() > 0) {
    ++record_.requests[index].output_tokens;
    record_.tokens.Count(now_ns_, 1);
  } else {
    record_.AddToken(index, now_ns_);
  }
  if (snapshot_.load.waiting_requests == 0) return;
  const SimulatedRequest& request = workload_.requests[index];
  const bool first = event.position == 0 && event.sequence.value() == 0;
  record_.contended_tokens[request.tenant] += 1 + (first ? request.prompt_tokens : 0);
}

void VirtualRun::Take(const RequestEnd& event) {
  RequestRecord& request = record_.requests[event.request.counter];
  request.cached_tokens = event.usage.cached_tokens;
  request.preemptions = event.usage.preemptions;
  if (event.status.ok()) {
    request.outcome = RequestOutcome::kFinished;
  } else if (absl::IsDeadlineExceeded(event.status)) {
    request.outcome = RequestOutcome::kDeadline;
  } else if (absl::IsInternal(event.status)) {
    request.outcome = RequestOutcome::kFailed;
  } else {
    request.outcome = RequestOutcome::kRefused;
  }
  ++ended_;
  if (workload_.concurrency == 0) return;
  Think(workload_.chats ? static_cast<std::uint32_t>(event.request.counter) + workload_.concurrency
                        : next_++);
}

// Accounts the time since the last event, in which the observed state did not change.
void VirtualRun::AccountUntil(std::int64_t now_ns) {
  const double passed = static_cast<double>(now_ns - now_ns_);
  const EngineLoad& load = snapshot_.load;
  record_.memory.used += passed * static_cast<double>(used_slots_);
  record_.memory.wasted += passed * static_cast<double>(wasted_slots_);
  record_.load.running += passed * load.running_requests;
  record_.load.waiting += passed * load.waiting_requests;
  record_.running.Hold(now_ns_, now_ns, load.running_requests);
  record_.waiting.Hold(now_ns_, now_ns, load.waiting_requests);
  record_.used_blocks.Hold(now_ns_, now_ns, load.blocks_used);
  now_ns_ = now_ns;
}

void VirtualRun::Observe() {
  snapshot_ = core_.Snapshot();
  used_slots_ = PositionsOf(snapshot_.load.blocks_used);
  std::uint64_t wasted = 0;
  // A shared block is full, so it adds as much to a table's slots as to the length. So did a block
  // that was given back; its entry in the table stays.
  for (const scheduler::OpenSequenceView& sequence : core_.OpenSequences()) {
    for (const absl::Span<const BlockId> table : sequence.tables) {
      wasted += table.size() * std::uint64_t{block_tokens_} - sequence.length.scheduled_max;
    }
  }
  wasted_slots_ = wasted / description_.groups.size();
  record_.memory.peak_used = std::max(record_.memory.peak_used, used_slots_);
  record_.load.peak_running = std::max(record_.load.peak_running, snapshot_.load.running_requests);
  record_.load.peak_waiting = std::max(record_.load.peak_waiting, snapshot_.load.waiting_requests);
}

absl::Status VirtualRun::Finish() {
  record_.end_ns = now_ns_;
  record_.group = group_.totals();
  record_.core = core_.Snapshot().counters;
  if (core_.live_requests() > 0 || ended_ != workload_.requests.size()) {
    return absl::InternalError(absl::StrCat("the simulation stands still with ",
                                            core_.live_requests(), " requests unfinished"));
  }
  if (core_.Snapshot().load.blocks_used != 0) {
    return absl::InternalError("blocks are used when all requests have ended");
  }
  return core_.CheckInvariants();
}

}  // namespace

absl::StatusOr<RunRecord> SimulateWith(StepRunner& runner, const Machine& machine,
                                       const Workload& workload, const SimulationOptions& options) {
  if (absl::Status s = CheckPolicy(options.policy); !s.ok()) return s;
  return VirtualRun(runner, machine, workload, options, scheduler::MakePolicy(options.policy))
      .ToTheEnd();
}

absl::StatusOr<RunRecord> Simulate(const Machine& machine, const Workload& workload,
                                   const SimulationOptions& options) {
  ModelledSteps steps(machine.cost);
  return SimulateWith(steps, machine, workload, options);
}

}  // namespace flotilla::simulator
