#include "scheduler/core/core_state.h"

#include <algorithm>
#include <utility>

namespace flotilla {

CoreState::CoreState(const CoreOptions& options, std::unique_ptr<OrderPolicy> policy)
    : options(options),
      policy(std::move(policy)),
      waiting(&branches, this->policy.get()),
      deadlines(EarlierDeadline{&branches}) {}

std::uint32_t CoreState::MaxStepTokens() const {
  return std::min(options.max_step_tokens, description->max_step_tokens);
}

std::uint32_t CoreState::MaxRunning() const {
  return std::min({options.max_seqs, description->max_branches, MaxStepTokens()});
}

void CoreState::AddRunning(Slot slot) {
  const auto before = [this](Slot a, Slot b) { return policy->Before(branches[a], branches[b]); };
  running.insert(std::upper_bound(running.begin(), running.end(), slot, before), slot);
}

void CoreState::Detach(Slot slot) {
  Branch& branch = branches[slot];
  epoch->kv.Close(branch);
  epoch->handles.Retire(branch.handle);
  --epoch->cohort_sizes[branch.cohort];
  running.erase(std::find(running.begin(), running.end(), slot));
}

void CoreState::End(Slot slot, FinishReason reason, std::uint32_t kept, absl::Status status) {
  Branch& branch = branches[slot];
  if (branch.open()) {
    Detach(slot);
  } else {
    waiting.Remove(slot);
  }
  deadlines.Remove(slot);
  owed_tokens -= branch.owed_tokens();
  switch (reason) {
    case FinishReason::kStop:
      ++counters.stopped;
      break;
    case FinishReason::kLength:
      ++counters.length;
      break;
    case FinishReason::kCancelled:
      ++counters.cancelled;
      break;
    case FinishReason::kDeadline:
      ++counters.expired;
      break;
    case FinishReason::kError:
    case FinishReason::kMoved:
      ++counters.failed;
      break;
  }
  events.push_back(BranchEnd{.request = branch.request,
                             .attempt = branch.attempt,
                             .branch = branch.index,
                             .reason = reason,
                             .output_tokens = kept});
  events.push_back(RequestEnd{.request = branch.request,
                              .attempt = branch.attempt,
                              .status = std::move(status),
                              .retry_after_ms = 0,
                              .usage = Usage{.prompt_tokens = branch.prompt_tokens,
                                             .output_tokens = kept,
                                             .cached_tokens = branch.cached_tokens,
                                             .preemptions = branch.preemptions,
                                             .decode_preemptions = branch.decode_preemptions}});
  branches.Erase(slot);
}

void CoreState::Requeue(Slot slot) {
  Branch& branch = branches[slot];
  owed_tokens += branch.length.lower;
  branch.length.lower = branch.length.upper = 0;
  branch.indexed_blocks = 0;
  branch.indexed = kNoPrefix;
  branch.duplicate = false;
  branch.state = BranchState::kWaiting;
  waiting.Push(slot);
}

void CoreState::Preempt(Slot slot) {
  Branch& branch = branches[slot];
  if (branch.state == BranchState::kDecode && branch.output_tokens() > 0) {
    ++branch.decode_preemptions;
  }
  ++branch.preemptions;
  Detach(slot);
  Requeue(slot);
  ++counters.preemptions;
}

void CoreState::LoseEpoch() {
  counters.replays += running.size();
  for (const Slot slot : running) {
    branches[slot].tables.clear();
    Requeue(slot);
  }
  running.clear();
  epoch.reset();
}

}  // namespace flotilla
