#include "scheduler/core/scheduler_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/core/admission.h"
#include "scheduler/core/invariants.h"
#include "scheduler/core/result_applier.h"

namespace flotilla {

SchedulerCore::SchedulerCore(const CoreOptions& options, std::unique_ptr<OrderPolicy> policy)
    : state_(options, std::move(policy)) {}

absl::Status SchedulerCore::Ready(Epoch epoch, const ExecutorDescription& description) {
  if (epoch <= state_.last_epoch) return absl::OkStatus();
  if (absl::Status s = CheckDescription(description); !s.ok()) return s;
  if (state_.epoch.has_value()) state_.LoseEpoch();
  state_.last_epoch = epoch;
  state_.description = description;
  state_.rates = Rates(description.prefill_ns_per_token, description.decode_ns_per_step);
  state_.epoch.emplace(epoch, description, state_.options.prefix_cache);
  for (const Slot slot : state_.branches.Slots()) {
    const Branch& branch = state_.branches[slot];
    const std::uint64_t total = std::uint64_t{branch.prompt_tokens} + branch.stop.max_tokens;
    if (absl::Status s = CheckFits(total, branch.length.max, description); !s.ok()) {
      state_.End(slot, FinishReason::kError, branch.output_tokens(),
                 absl::ResourceExhaustedError(s.message()));
    }
  }
  return absl::OkStatus();
}

void SchedulerCore::Lost(Epoch epoch) {
  if (state_.epoch.has_value() && state_.epoch->epoch == epoch) state_.LoseEpoch();
}

void SchedulerCore::Refuse(const TokenizedRequest& request, absl::Status status,
                           std::int64_t retry_after_ms) {
  ++state_.counters.refused;
  state_.events.push_back(RequestEnd{.request = request.id,
                                     .attempt = request.attempt,
                                     .status = std::move(status),
                                     .retry_after_ms = retry_after_ms,
                                     .usage = {}});
}

absl::Status SchedulerCore::CheckEntry(std::int64_t now_ns, const TokenizedRequest& request) const {
  if (state_.draining) return absl::UnavailableError("the engine is draining");
  if (!state_.description.has_value()) {
    return absl::UnavailableError("no worker group is ready yet");
  }
  if (state_.branches.Find(request.id).has_value()) {
    return absl::AlreadyExistsError("a request of this id is being served");
  }
  if (absl::Status s = CheckServable(request, state_.options, *state_.description); !s.ok()) {
    return s;
  }
  if (request.deadline_ns.has_value() && *request.deadline_ns <= now_ns) {
    return absl::DeadlineExceededError("the deadline has passed");
  }
  if (state_.waiting.size() >= state_.options.max_queued_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", state_.waiting.size(), " requests wait"));
  }
  if (state_.waiting.tokens() + request.prompt.size() > state_.options.max_queued_tokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", state_.waiting.tokens(), " prompt tokens wait"));
  }
  return absl::OkStatus();
}

void SchedulerCore::Admit(std::int64_t now_ns, TokenizedRequest request) {
  if (absl::Status s = CheckEntry(now_ns, request); !s.ok()) {
    const bool retry = absl::IsResourceExhausted(s) || absl::IsUnavailable(s);
    Refuse(request, std::move(s), retry ? state_.rates.RetryAfterMs(state_.waiting.tokens()) : 0);
    return;
  }
  Branch branch;
  branch.request = request.id;
  branch.attempt = request.attempt;
  branch.tokens = std::move(request.prompt);
  branch.prompt_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  if (!request.output_prefix.empty()) {
    const std::vector<TokenId>& prefix = request.output_prefix[0];
    branch.tokens.insert(branch.tokens.end(), prefix.begin(), prefix.end());
  }
  // With the first length, no two pairs of strings make the same scope.
  branch.cache_scope = absl::StrCat(request.tenant.size(), ":", request.tenant, request.cache_salt);
  branch.sampling = request.sampling;
  branch.stop = std::move(request.stop);
  branch.logprobs = request.logprobs;
  branch.deadline_ns = request.deadline_ns;
  branch.priority = request.priority;
  branch.arrival = state_.next_arrival++;
  branch.length.max = MaxPositions(branch.prompt_tokens, branch.stop.max_tokens);

  state_.events.push_back(Accepted{.request = request.id, .attempt = request.attempt});
  ++state_.counters.accepted;
  state_.owed_tokens += branch.owed_tokens();
  const Slot slot = state_.branches.Insert(std::move(branch));
  state_.waiting.Push(slot);
  if (EndIfComplete(slot)) return;
  if (request.deadline_ns.has_value()) state_.deadlines.Push(slot);
}

// A replayed request may have had its last token delivered and only its end
// lost on the way.
bool SchedulerCore::EndIfComplete(Slot slot) {
  const Branch& branch = state_.branches[slot];
  if (branch.output_tokens() == 0) return false;
  const std::vector<TokenId>& stops = branch.stop.stop_tokens;
  const bool stopped = std::binary_search(stops.begin(), stops.end(), branch.tokens.back());
  if (!stopped && branch.output_tokens() < branch.stop.max_tokens) return false;
  state_.End(slot, stopped ? FinishReason::kStop : FinishReason::kLength, branch.output_tokens(),
             absl::OkStatus());
  return true;
}

void SchedulerCore::Cancel(const CancelRequest& cancel) {
  const std::optional<Slot> slot = state_.branches.Find(cancel.request);
  if (!slot.has_value()) return;
  const Branch& branch = state_.branches[*slot];
  if (cancel.branch.has_value() && *cancel.branch != branch.index) return;
  state_.End(*slot, FinishReason::kCancelled, std::min(cancel.keep_tokens, branch.output_tokens()),
             absl::OkStatus());
}

absl::Status SchedulerCore::Apply(const StepResult& result) {
  return ResultApplier(state_).Apply(result);
}

void SchedulerCore::ExpireDeadlines(std::int64_t now_ns) {
  while (!state_.deadlines.empty()) {
    const Slot slot = state_.deadlines.top();
    const Branch& branch = state_.branches[slot];
    if (*branch.deadline_ns > now_ns) return;
    state_.End(slot, FinishReason::kDeadline, branch.output_tokens(),
               absl::DeadlineExceededError("the deadline has passed"));
  }
}

PlanOutcome SchedulerCore::Plan(std::int64_t now_ns) {
  ExpireDeadlines(now_ns);
  PlanOutcome outcome = StepPlanner(state_).Make();
  if (!state_.deadlines.empty()) {
    outcome.wake_ns = state_.branches[state_.deadlines.top()].deadline_ns;
  }
  return outcome;
}

void SchedulerCore::Abort(const absl::Status& status) {
  for (const Slot slot : state_.branches.Slots()) {
    state_.End(slot, FinishReason::kError, state_.branches[slot].output_tokens(), status);
  }
}

std::vector<EngineEvent> SchedulerCore::TakeEvents() { return std::exchange(state_.events, {}); }

CoreSnapshot SchedulerCore::Snapshot() const {
  CoreSnapshot snapshot;
  EngineLoad& load = snapshot.load;
  load.running_requests = static_cast<std::uint32_t>(state_.running.size());
  load.waiting_requests = static_cast<std::uint32_t>(state_.waiting.size());
  load.owed_tokens = state_.owed_tokens;
  load.draining = state_.draining;
  load.ready = state_.epoch.has_value();
  if (load.ready) {
    load.blocks_total = state_.epoch->kv.pool().total();
    load.blocks_used = state_.epoch->kv.pool().used();
    snapshot.blocks_cached = state_.epoch->kv.pool().cached();
    snapshot.in_flight = static_cast<std::uint32_t>(state_.epoch->in_flight.size());
  }
  snapshot.counters = state_.counters;
  snapshot.waiting_tokens = state_.waiting.tokens();
  return snapshot;
}

std::vector<OpenBranchView> SchedulerCore::OpenBranches() const {
  std::vector<OpenBranchView> views;
  for (const Slot slot : state_.running) {
    const Branch& branch = state_.branches[slot];
    OpenBranchView view{.handle = branch.handle,
                        .request = branch.request,
                        .index = branch.index,
                        .state = branch.state,
                        .opened = branch.opened,
                        .length = branch.length,
                        .tokens = branch.tokens,
                        .tables = {}};
    for (const std::vector<BlockId>& table : branch.tables) view.tables.push_back(table);
    views.push_back(std::move(view));
  }
  std::sort(views.begin(), views.end(),
            [](const OpenBranchView& a, const OpenBranchView& b) { return a.handle < b.handle; });
  return views;
}

std::uint64_t SchedulerCore::digest() const {
  return state_.epoch.has_value() ? state_.epoch->kv.digest() : 0;
}

absl::Status SchedulerCore::CheckInvariants() const { return flotilla::CheckInvariants(state_); }

}  // namespace flotilla
