#include "tests/sim/liveness.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/core/admission.h"

namespace flotilla::testing {
namespace {

absl::Status Broken(const RequestId& id, absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("invariant 7: request ", id.counter, " waits too long: ", what));
}

std::uint32_t Delivered(const SimClient& client) {
  std::uint32_t most = 0;
  for (std::uint32_t i = 0; i < client.request().sequences; ++i) {
    most = std::max(most, client.delivered(SequenceIndex(i)));
  }
  return most;
}

}  // namespace

Liveness::Liveness(const scheduler::CoreOptions& options, absl::string_view policy,
                   FindClient find_client)
    : options_(options), policy_(policy), find_client_(std::move(find_client)) {}

void Liveness::Begin(const ExecutorDescription& group) {
  group_ = group;
  left_out_.clear();
}

void Liveness::BeforePlan(const States& states,
                          const std::vector<scheduler::OpenSequenceView>& open) {
  seen_.clear();
  preempted_.clear();
  for (const scheduler::SequenceStatus& sequence : states) {
    Seen& seen = seen_[sequence.request];
    seen.client = &find_client_(sequence.request);
    ++seen.sequences;
    seen.waiting &= sequence.state == scheduler::SequenceState::kWaiting;
    seen.prompt_is_due |= sequence.state == scheduler::SequenceState::kPending ||
                          sequence.state == scheduler::SequenceState::kPrefill;
  }
  std::set<BlockId> used;
  std::map<RequestId, std::set<BlockId>> by_request;
  std::map<BlockId, std::set<RequestId>> in_windows;
  for (const scheduler::OpenSequenceView& sequence : open) {
    std::set<BlockId>& own = by_request[sequence.request];
    for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
      const auto& table = sequence.tables[g];
      used.insert(table.begin(), table.end());
      if (group_.groups[g].kind == KvGroup::Kind::kWindow) {
        for (const BlockId block : table) in_windows[block].insert(sequence.request);
      } else {
        own.insert(table.begin(), table.end());
      }
    }
  }
  // A block of a window is a request's own if no other has it: else it does not come back.
  in_windows.erase(kNullBlock);
  for (const auto& [block, requests] : in_windows) {
    if (requests.size() == 1) by_request[*requests.begin()].insert(block);
  }
  for (const auto& [id, own] : by_request) seen_[id].blocks = own.size();
  used.erase(kNullBlock);
  used_ = used.size();
  places_ = 0;
  for (const auto& [id, seen] : seen_) {
    if (!seen.waiting) places_ += Width(seen);
  }
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    it = seen_.count(it->first) == 0 ? waiters_.erase(it) : std::next(it);
  }
}

std::uint32_t Liveness::Width(const Seen& seen) {
  const TokenizedRequest& request = seen.client->request();
  return request.beam ? request.beam->beams : seen.sequences;
}

int Liveness::Protection(const Seen& seen) const {
  const auto waiter = waiters_.find(seen.client->request().id);
  const std::uint32_t preemptions = waiter == waiters_.end() ? 0 : waiter->second.preemptions;
  if (preemptions >= options_.max_preemptions) return 2;
  return preemptions > 0 && preemptions + 1 >= options_.max_preemptions ? 1 : 0;
}

// A request with a deadline may go behind all others. One that killed a group alone goes behind
// those that are quarantined.
bool Liveness::IsClear(const Seen& seen) const {
  return !seen.client->request().has_own_deadline() && seen.client->deaths() == 0 &&
         seen.client->request().crash_count == 0;
}

bool Liveness::SurelyBefore(const Seen& a, const Seen& b) const {
  const TokenizedRequest& x = a.client->request();
  const TokenizedRequest& y = b.client->request();
  const int of_a = Protection(a), of_b = Protection(b);
  if (of_a != of_b) return of_a > of_b;
  if (options_.fair_share && of_a == 0 && x.tenant != y.tenant) return false;
  if (policy_ != "fcfs" && x.priority != y.priority) return x.priority > y.priority;
  if (policy_ == "srpt") return false;
  if (policy_ == "edf" && y.has_own_deadline()) return false;
  return x.id.counter < y.id.counter;
}

bool Liveness::MayShareAPrefix(const Seen& a, const Seen& b) const {
  const TokenizedRequest& x = a.client->request();
  const TokenizedRequest& y = b.client->request();
  if (!options_.prefix_cache || x.tenant != y.tenant || x.cache_salt != y.cache_salt) return false;
  const auto block =
      std::min({x.prompt.size(), y.prompt.size(), std::size_t{group_.groups[0].tokens_per_block}});
  return std::equal(x.prompt.begin(), x.prompt.begin() + static_cast<std::ptrdiff_t>(block),
                    y.prompt.begin());
}

std::uint64_t Liveness::Blocks(std::uint32_t prompt_tokens, std::uint32_t outputs,
                               std::uint32_t width) const {
  return scheduler::MostBlocks(
      {.prompt_tokens = prompt_tokens, .max_tokens = outputs, .width = width}, group_);
}

std::uint64_t Liveness::Wants(const Seen& seen) const {
  const TokenizedRequest& request = seen.client->request();
  const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
  // A next token of each sequence may need a block, and a prediction is rounded up.
  const std::uint64_t more = 2 * group_.groups.size() + options_.watermark_blocks;
  const bool predicts = options_.expected_output_permille > 0 || Protection(seen) > 0;
  const std::uint32_t outputs =
      predicts || request.beam.has_value() ? request.stop.max_tokens : Delivered(*seen.client) + 1;
  std::uint64_t most = Width(seen) * (Blocks(prompt, outputs, 1) + more);
  // What is reserved for several sequences counts no window as saved.
  if (Protection(seen) > 0) most = std::max(most, Blocks(prompt, outputs, Width(seen)));
  return most - std::min(most, seen.blocks);
}

bool Liveness::Fits(const Seen& seen, std::uint64_t copying) const {
  if (places_ + Width(seen) > scheduler::MaxSequences(options_, group_)) return false;
  std::uint64_t wanted = used_ + copying + Wants(seen);
  for (const auto& [id, other] : seen_) {
    if (!other.waiting) wanted += Wants(other);
  }
  return wanted < group_.block_count;
}

// Whether the first of those that wait goes before all prompts that were begun, too, and could have
// its first rows now.
bool Liveness::IsFirstAndFits(const Seen& first, std::uint64_t copying) const {
  for (const auto& [id, other] : seen_) {
    if (other.waiting || !other.prompt_is_due) continue;
    if (!SurelyBefore(first, other) || MayShareAPrefix(first, other)) return false;
  }
  return Fits(first, copying);
}

// Counts the prompt tokens of requests that start in this plan although one that goes before them
// waits.
absl::Status Liveness::CheckOvertaken(const RequestId& id, const Seen& waits, bool is_first,
                                      const StepPlan& plan) {
  Waiter& waiter = waiters_[id];
  counts_.judged += is_first;
  std::uint64_t largest = 0;
  for (const PlanOp& op : plan.ops) {
    const auto* open = std::get_if<OpenSequence>(&op);
    if (open == nullptr) continue;
    const auto started = seen_.find(open->request);
    if (started == seen_.end() || !started->second.waiting) continue;
    if (&started->second == &waits || !SurelyBefore(waits, started->second)) continue;
    waiter.overtaken += open->tokens.size();
    (is_first ? counts_.overtaken : counts_.overtaken_behind) += open->tokens.size();
    largest = std::max<std::uint64_t>(largest, open->tokens.size());
  }
  const std::uint64_t allowed = options_.max_overtaken_rows < 0
                                    ? 32 * std::uint64_t{options_.max_step_tokens}
                                    : static_cast<std::uint64_t>(options_.max_overtaken_rows);
  if (allowed > 0) {
    counts_.most_overtaken_permille =
        std::max(counts_.most_overtaken_permille, 1000 * waiter.overtaken / allowed);
  }
  if (largest == 0 || waiter.overtaken <= allowed) return absl::OkStatus();
  return Broken(id, absl::StrCat("overtaken by ", waiter.overtaken, " rows of ", allowed,
                                 is_first ? "" : ", behind the first"));
}

// A sequence that decodes is left out of 6 plans at most because its masks are late, of one while a
// result is outstanding, and of one more for which it is short of a block. While copies hold
// blocks, or others run in isolated steps, it may be more.
absl::Status Liveness::CheckLeftOut(const StepPlan& plan, bool unclear) {
  constexpr std::uint64_t kMost = 8;
  if (unclear) left_out_.clear();
  for (const PlanOp& op : plan.ops) {
    const auto* defer = std::get_if<Defer>(&op);
    if (defer == nullptr) continue;
    auto& [plans, last] = left_out_[defer->sequence];
    plans = last.value() + group_.lag == plan.step.value() ? plans + 1 : 1;
    last = plan.step;
    if (unclear) continue;
    counts_.most_left_out = std::max(counts_.most_left_out, plans);
    if (plans <= kMost) continue;
    return absl::InternalError(absl::StrCat("invariant 7: sequence ", defer->sequence.value(),
                                            " is left out of ", plans, " plans in a row"));
  }
  return absl::OkStatus();
}

// Whether the plan may have no chunk so that decodes alone are measured: after 64 plans with
// chunks.
bool Liveness::MeasuresDecodes(const StepPlan& plan) {
  constexpr std::uint64_t kPlansWithChunks = 64;
  const bool chunks = std::any_of(plan.ops.begin(), plan.ops.end(),
                                  [](const PlanOp& op) { return std::holds_alternative<Run>(op); });
  plans_with_chunks_ += chunks;
  return !chunks && plans_with_chunks_ >= kPlansWithChunks;
}

absl::Status Liveness::AfterPlan(const StepPlan& plan, const States& states, std::uint64_t copying,
                                 bool loading, bool unclear) {
  const bool copies = std::any_of(plan.ops.begin(), plan.ops.end(), [](const PlanOp& op) {
    return std::holds_alternative<BackgroundCopy>(op);
  });
  if (absl::Status s = CheckLeftOut(plan, unclear || copies || copying > 0); !s.ok()) return s;
  std::set<RequestId> started, waiting;
  bool further = false;  // the plan opens further sequences of requests that were started before
  for (const PlanOp& op : plan.ops) {
    const auto* open = std::get_if<OpenSequence>(&op);
    if (open != nullptr) started.insert(open->request);
    further |= open != nullptr && !seen_[open->request].waiting;
    further |= std::holds_alternative<ForkSequence>(op);
    const auto* copy = std::get_if<BackgroundCopy>(&op);
    loading |= copy != nullptr && copy->kind == BackgroundCopy::Kind::kIn;
  }
  for (const scheduler::SequenceStatus& sequence : states) {
    if (sequence.state == scheduler::SequenceState::kWaiting) waiting.insert(sequence.request);
  }
  // The first of those that waited before the plan, or wait since a preemption in it.
  const auto waited = [&](const auto& entry) {
    return entry.second.waiting || waiting.count(entry.first) > 0;
  };
  const auto first = std::find_if(seen_.begin(), seen_.end(), [&](const auto& one) {
    return one.second.waiting && IsClear(one.second) &&
           std::all_of(seen_.begin(), seen_.end(), [&](const auto& other) {
             return &other == &one || !waited(other) || SurelyBefore(one.second, other.second);
           });
  });
  for (const RequestId& id : started) {
    if (seen_[id].waiting) waiters_[id] = {.preemptions = waiters_[id].preemptions};
  }
  const bool measures = MeasuresDecodes(plan);
  // Who was preempted and starts again at once waited before all others, and was not seen to.
  const auto again = [&](const RequestId& id) { return started.count(id) > 0; };
  unclear |= std::any_of(preempted_.begin(), preempted_.end(), again);
  if (loading || unclear) return absl::OkStatus();
  // A plan does not try to start any number of requests.
  const bool tries_all = waiting.size() <= 32;
  for (const auto& [id, seen] : seen_) {
    const bool is_first = first != seen_.end() && id == first->first;
    if (is_first && started.count(id) > 0) counts_.started += IsFirstAndFits(seen, copying);
    if (!seen.waiting || !IsClear(seen) || waiting.count(id) == 0) continue;
    if (!is_first && !tries_all) continue;
    // Who waits for a prefix hides nobody.
    const bool shares = std::any_of(seen_.begin(), seen_.end(), [&](const auto& other) {
      const bool computes = other.second.prompt_is_due || started.count(other.first) > 0;
      return computes && MayShareAPrefix(seen, other.second);
    });
    if (shares) continue;
    const std::uint64_t overtaken = counts_.overtaken;
    if (absl::Status s = CheckOvertaken(id, seen, is_first, plan); !s.ok()) return s;
    const bool others_start = further || counts_.overtaken > overtaken;
    if (!is_first || others_start || !IsFirstAndFits(seen, copying)) continue;
    if (!measures) return Broken(id, "it is first and fits, but the plan has no row of it");
    plans_with_chunks_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace flotilla::testing
