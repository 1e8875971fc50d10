// What the simulation checks after its events, and what it counts of them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace flotilla::testing {
namespace {

// Plans that a sequence may wait for copies: each step ends none, one or two of them.
constexpr std::uint32_t kMostCopySteps = 100;
// How much more time than it needs at most, in percent, a request that is ended early may have
// had: the forecast errs by so much.
constexpr std::int64_t kEarlyMargin = 100;

}  // namespace

absl::Status Broken(int invariant, absl::string_view what) {
  return absl::InternalError(absl::StrCat("invariant ", invariant, ": ", what));
}

// Invariant 7: a stall has a reason, and what ends it is on its way.
absl::Status Simulation::CheckStall(const scheduler::PlanOutcome& outcome) const {
  const scheduler::CoreSnapshot core = core_->Snapshot();
  bool stated = false;
  switch (outcome.stall) {
    case scheduler::StallReason::kNone:
      stated = true;
      break;
    case scheduler::StallReason::kNotReady:
      stated = !core.load.ready;
      break;
    case scheduler::StallReason::kPipelineFull:
      stated = core.in_flight == group_.lag + 1;
      break;
    case scheduler::StallReason::kMemory:
    case scheduler::StallReason::kResults:
      stated = core.in_flight > 0;
      break;
    case scheduler::StallReason::kHeldBack:
      stated = core.candidates > 0 && outcome.wake_ns.has_value();
      break;
    case scheduler::StallReason::kIdle:
      stated = core_->live_requests() == 0;
      break;
  }
  if (!stated || outcome.plan.has_value() != (outcome.stall == scheduler::StallReason::kNone)) {
    return Broken(7, absl::StrCat("stall ", static_cast<int>(outcome.stall)));
  }
  return absl::OkStatus();
}

// The first request in order; none: it is not open.
std::optional<RequestId> Simulation::FirstOpen() const {
  for (const scheduler::OpenSequenceView& sequence : core_->OpenSequences()) {
    if (sequence.rank == 0) return sequence.request;
  }
  return std::nullopt;
}

// Invariant 7: the request that was the first in order before a plan is no victim of it, unless a
// waiting request of a higher class takes its place.
absl::Status Simulation::CheckVictims(const std::optional<RequestId>& first) const {
  if (!first.has_value()) return absl::OkStatus();
  for (const scheduler::SequenceStatus& sequence : core_->SequenceStates()) {
    if (sequence.request != *first || sequence.state != SequenceState::kWaiting) continue;
    const std::int32_t priority = Find(*first).request().priority;
    const bool higher = std::any_of(live_.begin(), live_.end(), [&](std::uint64_t id) {
      return clients_.at(id).request().priority > priority;
    });
    if (!higher) return Broken(7, "the first sequence was preempted");
  }
  return absl::OkStatus();
}

// Invariant 7: the first sequence of the policy gains a position, or has all that it can have in
// flight, within the plans of two rounds of the pipeline; of three, if its blocks had to be copied
// away from others.
absl::Status Simulation::CheckProgress() {
  const std::vector<scheduler::OpenSequenceView> open = core_->OpenSequences();
  const bool still_open = std::any_of(open.begin(), open.end(), [this](const auto& sequence) {
    return sequence.request == front_;
  });
  bool pending = false;  // its open sequences have ended and others of it are yet to open
  if (front_ && !still_open && !Find(*front_).ended()) {
    for (const scheduler::SequenceStatus& sequence : core_->SequenceStates()) {
      pending |= sequence.request == front_ && sequence.state == SequenceState::kPending;
    }
  }
  if (open.empty() && !pending) {
    front_.reset();
    return absl::OkStatus();
  }
  const RequestId first =
      pending ? *front_
              : std::min_element(open.begin(), open.end(), [](const auto& a, const auto& b) {
                  return a.rank < b.rank;
                })->request;
  std::uint64_t progress = 0;
  bool all_planned = !pending;
  for (const scheduler::OpenSequenceView& sequence : open) {
    if (sequence.request != first) continue;
    progress = MixBits(progress ^ sequence.length.computed_min ^ sequence.handle.value() << 20);
    all_planned &= sequence.length.computed_min == sequence.length.max;
    // Under a constraint it is not sure before the answer that a row in a plan gives a token.
    if (!Find(first).request().sampling.constraint) continue;
    progress = MixBits(progress ^ sequence.length.computed ^ sequence.length.in_flight_max << 16);
  }
  const bool same = front_ == first && front_progress_ == progress && !all_planned;
  // Copies to and from tiers may hold the blocks that it needs, for as long as they
  // take.
  front_stalled_ = same ? front_stalled_ + copying_.empty() : 0;
  front_waits_ = same ? front_waits_ + !copying_.empty() : 0;
  front_ = first;
  front_progress_ = progress;
  // Its turn comes once a round: what a copy frees just after it is a round late.
  // Behind late masks it is left out of 7 rounds at most (Liveness), each time.
  const std::uint32_t rounds =
      (front_waits_ > 0 ? 3 : 2) +
      (Find(first).request().sampling.constraint ? 8 * SimWorker::kMostLate : 0);
  // Every second step is isolated, and quarantined requests have their two isolated steps one
  // request after another.
  const std::uint32_t quarantined = core_->Snapshot().quarantined;
  front_quarantined_ = same ? std::max(front_quarantined_, quarantined) : quarantined;
  // Under fair share another tenant can be first when the plan is made, and this one again when
  // its rows are charged.
  const std::uint32_t turns = (1 + 4 * front_quarantined_) * (options_.fair_share ? 8 : 1);
  if (front_stalled_ > turns * (rounds * group_.lag + 2) || front_waits_ > kMostCopySteps) {
    return Broken(7, "the first sequence stands still");
  }
  return absl::OkStatus();
}

// A plan carries no more bytes of constraints than it may, but for a single one.
absl::Status Simulation::CheckConstraints(const StepPlan& plan) {
  std::size_t count = 0, bytes = 0;
  for (const PlanOp& op : plan.ops) {
    const auto* open = std::get_if<OpenSequence>(&op);
    if (open == nullptr || !open->sampling.constraint) continue;
    ++count;
    bytes += open->sampling.constraint.text.size();
  }
  coverage_.most_constraints = std::max<std::uint64_t>(coverage_.most_constraints, count);
  return count > 1 && bytes > options_.max_constraint_bytes
             ? Broken(3, "a plan with too many bytes of constraints")
             : absl::OkStatus();
}

absl::Status Simulation::CheckLiveness(const StepPlan& plan,
                                       const scheduler::CoreSnapshot& before) {
  if (absl::Status s = CheckConstraints(plan); !s.ok()) return s;
  const scheduler::CoreSnapshot core = core_->Snapshot();
  std::uint64_t blocks = 0;
  bool loading = false;
  for (const auto& [id, copy] : copying_) {
    blocks += copy.moves.size();
    loading |= copy.kind == BackgroundCopy::Kind::kIn;
  }
  const bool quarantined = core.quarantined > 0;
  const bool unclear = core.candidates > 0 || before.candidates > 0;
  return liveness_->AfterPlan(
      plan, core_->SequenceStates(),
      {.copying = blocks, .loading = loading, .quarantined = quarantined, .unclear = unclear});
}

// If all that the request does not have is computed beside the sequences that run now, and every
// step and row costs as much as the dearest ones that the groups of the simulation report. The
// answer is as long as it may be, because the scheduler does not know where it stops.
absl::Status Simulation::CheckEarlyEnd(const SimClient& client) {
  const TokenizedRequest& request = client.request();
  if (*request.deadline_ns <= now_ns_) return absl::OkStatus();
  if (!request.has_own_deadline())
    return Broken(5, "ended early for a limit that nobody asked for");
  ++coverage_.ended_early;
  // The call may have preempted the request before it ended it. Then all is to be computed again.
  const bool preempted = core_->Snapshot().counters.preemptions > preemptions_then_;
  std::uint64_t tokens = 0, outputs = 0, others = 0, own = 0;
  for (const scheduler::SequenceStatus& sequence : states_) {
    if (sequence.request != request.id) {
      others += sequence.state != SequenceState::kWaiting;
      continue;
    }
    const std::uint32_t made = request.beam ? 0 : client.delivered(sequence.index);
    ++own;
    outputs = std::max<std::uint64_t>(outputs, request.stop.max_tokens - made);
    const std::uint64_t known = request.prompt.size() + made;
    tokens += known - std::min<std::uint64_t>(known, preempted ? 0 : sequence.computed);
  }
  const std::uint64_t rows = std::min(options_.max_step_tokens, group_.max_step_tokens);
  const std::uint64_t for_prompts = rows - std::min(rows - 1, others);
  const std::uint64_t steps = (tokens + for_prompts - 1) / for_prompts + outputs;
  const auto most = static_cast<std::int64_t>(
      steps * (kSimStepNs + kSimMostRowNs * (others + own)) + kSimMostRowNs * tokens);
  const std::int64_t left = *request.deadline_ns - now_ns_;
  coverage_.early_permille = std::max<std::int64_t>(coverage_.early_permille, 1000 * left / most);
  if (left <= most * kEarlyMargin / 100) return absl::OkStatus();
  return Broken(5, absl::StrCat("request ", request.id.counter, " ended ", left,
                                " ns before its deadline, although it needs at most ", most));
}

void Simulation::CountTransitions() {
  std::vector<scheduler::SequenceStatus> now = core_->SequenceStates();
  const auto key = [](const scheduler::SequenceStatus& b) { return std::pair(b.request, b.index); };
  const auto count = [this](std::size_t from, std::size_t to) {
    if (from != to) ++coverage_.transitions[from][to];
  };
  auto was = states_.begin();
  for (const scheduler::SequenceStatus& is : now) {
    for (; was != states_.end() && key(*was) < key(is); ++was) {
      count(static_cast<std::size_t>(was->state), kAbsent);
    }
    auto from = kAbsent;
    const auto to = static_cast<std::size_t>(is.state);
    if (was != states_.end() && key(*was) == key(is)) {
      from = static_cast<std::size_t>(was++->state);
    }
    // A beam that ended and a new one may have the same index.
    const bool other = from != kAbsent && from > to &&
                       is.state == scheduler::SequenceState::kPending &&
                       Find(is.request).request().beam.has_value();
    if (other) count(std::exchange(from, kAbsent), kAbsent);
    count(from, to);
  }
  for (; was != states_.end(); ++was) count(static_cast<std::size_t>(was->state), kAbsent);
  states_ = std::move(now);
  liveness_->NoteStates(states_);
  preemptions_then_ = core_->Snapshot().counters.preemptions;
}

// Invariant 9 for the sequences of a result just applied.
absl::Status Simulation::CompareMarks(const SimResult& result) const {
  const std::vector<scheduler::OpenSequenceView> open = core_->OpenSequences();
  for (const SimSequenceMark& mark : result.marks) {
    const auto sequence =
        std::lower_bound(open.begin(), open.end(), mark.sequence,
                         [](const scheduler::OpenSequenceView& view, SequenceHandle handle) {
                           return view.handle < handle;
                         });
    if (sequence == open.end() || sequence->handle != mark.sequence ||
        sequence->opened > result.result.step) {
      continue;
    }
    if (sequence->request != mark.request || sequence->length.computed != mark.length ||
        sequence->tokens.size() != mark.tokens || mark.finished) {
      return Broken(9, absl::StrCat("sequence ", mark.sequence.value(), " after its result"));
    }
  }
  return absl::OkStatus();
}

// Invariant 9 whenever the worker has applied all plans sent: tables are equal,
// lengths within the bounds, tokens ahead by what is on its way; equal when
// nothing is.
absl::Status Simulation::CompareWithWorker() const {
  if (worker_ == nullptr || !plans_.empty()) return absl::OkStatus();
  const bool settled = results_.empty() && !worker_->CanComplete();
  for (const scheduler::OpenSequenceView& mine : core_->OpenSequences()) {
    const std::optional<worker::SequenceView> theirs = worker_->state().View(mine.handle);
    if (!theirs || theirs->request != mine.request || theirs->index != mine.index) {
      return Broken(9, "a sequence that the worker does not have");
    }
    bool equal = theirs->tokens.size() >= mine.tokens.size() &&
                 (!settled || theirs->tokens.size() == mine.tokens.size()) &&
                 std::equal(mine.tokens.begin(), mine.tokens.end(), theirs->tokens.begin()) &&
                 mine.length.computed <= theirs->length &&
                 theirs->length <= mine.length.scheduled_max &&
                 (theirs->finished || theirs->length >= mine.length.computed_min) &&
                 (!settled || mine.length.computed == theirs->length) &&
                 (!settled || !theirs->finished) && mine.tables.size() == theirs->tables.size();
    for (std::size_t g = 0; equal && g < mine.tables.size(); ++g) {
      equal =
          std::equal(mine.tables[g].begin(), mine.tables[g].end(), theirs->tables[g].begin(),
                     theirs->tables[g].end(), [&](BlockId a, std::int32_t b) {
                       // What a window gave back after the last plan, the next one says.
                       return static_cast<std::int32_t>(a.value()) == b ||
                              (a == kNullBlock && group_.groups[g].kind == KvGroup::Kind::kWindow);
                     });
    }
    if (!equal) return Broken(9, absl::StrCat("sequence ", mine.handle.value()));
  }
  return absl::OkStatus();
}

void Simulation::TracePlan(const StepPlan& plan) {
  Trace(plan.epoch.value());
  Trace(plan.step.value());
  Trace(plan.digest);
  Trace(static_cast<std::uint64_t>(plan.predicted_ns));
  for (const PlanOp& op : plan.ops) {
    Trace(op.index());
    if (const auto* open = std::get_if<OpenSequence>(&op)) {
      Trace(open->request.counter);
      Trace(open->tokens.size());
      Trace(open->micro_batch);
      Trace(open->cached_tokens);
    } else if (const auto* speculate = std::get_if<Speculate>(&op)) {
      Trace(speculate->depth);
    } else if (const auto* run = std::get_if<flotilla::Run>(&op)) {
      Trace(run->candidates);
      Trace(run->count << 2 ^ run->sample << 1 ^ std::uint64_t{run->prompt_logprobs});
    }
  }
}

void SimCoverage::Add(const SimCoverage& o) {
  const auto add = [](auto& into, const auto& from) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] += from[i];
  };
  core.accepted += o.core.accepted;
  core.refused += o.core.refused;
  core.stopped += o.core.stopped;
  core.length += o.core.length;
  core.cancelled += o.core.cancelled;
  core.expired += o.core.expired;
  core.preemptions += o.core.preemptions;
  core.replays += o.core.replays;
  core.quarantines += o.core.quarantines;
  core.quarantine_releases += o.core.quarantine_releases;
  core.quarantine_failures += o.core.quarantine_failures;
  core.resumptions += o.core.resumptions;
  core.deferrals += o.core.deferrals;
  core.cached_tokens += o.core.cached_tokens;
  core.prefix_waits += o.core.prefix_waits;
  core.forks += o.core.forks;
  core.bypasses += o.core.bypasses;
  core.swapped += o.core.swapped;
  core.blocks_out += o.core.blocks_out;
  core.blocks_in += o.core.blocks_in;
  core.dropped_late += o.core.dropped_late;
  core.block_copies += o.core.block_copies;
  core.evictions += o.core.evictions;
  core.noops += o.core.noops;
  core.output_tokens += o.core.output_tokens;
  core.drafted_tokens += o.core.drafted_tokens;
  core.accepted_tokens += o.core.accepted_tokens;
  core.trims += o.core.trims;
  core.late_rows += o.core.late_rows;
  core.prefill_tokens += o.core.prefill_tokens;
  steps += o.steps;
  for (std::size_t from = 0; from < kSimStates; ++from) {
    add(transitions[from], o.transitions[from]);
  }
  add(faults, o.faults);
  add(cancelled_in, o.cancelled_in);
  add(lost_in, o.lost_in);
  add(stalls, o.stalls);
  add(lags, o.lags);
  add(policies, o.policies);
  refused_full += o.refused_full;
  refused_wait += o.refused_wait;
  refused_too_large += o.refused_too_large;
  refused_draining += o.refused_draining;
  replayed += o.replayed;
  prompt_only += o.prompt_only;
  non_preemptible += o.non_preemptible;
  parallel += o.parallel;
  beams += o.beams;
  large += o.large;
  beams_served += o.beams_served;
  large_lookups += o.large_lookups;
  large_found += o.large_found;
  windowed += o.windowed;
  windowed_found += o.windowed_found;
  windowed_read += o.windowed_read;
  window_blocks += o.window_blocks;
  arrived_quarantined += o.arrived_quarantined;
  ended_early += o.ended_early;
  early_permille = std::max(early_permille, o.early_permille);
  most_constraints = std::max(most_constraints, o.most_constraints);
  liveness.started += o.liveness.started;
  liveness.started_quarantined += o.liveness.started_quarantined;
  liveness.waited_isolated += o.liveness.waited_isolated;
  liveness.judged += o.liveness.judged;
  liveness.overtaken += o.liveness.overtaken;
  liveness.overtaken_behind += o.liveness.overtaken_behind;
  liveness.most_left_out = std::max(liveness.most_left_out, o.liveness.most_left_out);
  liveness.most_overtaken_permille =
      std::max(liveness.most_overtaken_permille, o.liveness.most_overtaken_permille);
}

}  // namespace flotilla::testing
