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
  passed_over_ = {};
}

// It judges only requests of one sequence: others may fork behind the rows that theirs ran.
void Liveness::NoteFatal(const RequestId& id, std::uint32_t begin, std::uint32_t end) {
  const TokenizedRequest& request = find_client_(id).request();
  if (request.sequences == 1 && !request.beam) fatal_[id] = {.begin = begin, .end = end};
}

void Liveness::NoteUnknownFatal() { unknown_fatal_ = true; }

void Liveness::NoteStates(const States& states) {
  if (fatal_.empty()) return;
  std::map<RequestId, std::uint32_t> computed;
  for (const scheduler::SequenceStatus& sequence : states) {
    computed[sequence.request] = sequence.computed;
  }
  std::erase_if(fatal_, [&](const auto& one) {
    const auto live = computed.find(one.first);
    return live == computed.end() || live->second >= one.second.end;
  });
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
  next_rows_.clear();
  for (const scheduler::OpenSequenceView& sequence : open) {
    next_rows_[sequence.handle] = {sequence.request, sequence.length.scheduled_max};
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
  return !seen.client->request().has_own_deadline() && !HasDied(seen);
}

bool Liveness::HasDied(const Seen& seen) {
  return seen.client->deaths() > 0 || seen.client->request().crash_count > 0;
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

bool Liveness::IsQuarantined(const Seen& seen) const {
  return fatal_.count(seen.client->request().id) > 0;
}

std::optional<bool> Liveness::StartsIsolated(const Seen& seen, const OpenSequence& open) const {
  if (!HasDied(seen)) return false;
  const auto fatal = fatal_.find(seen.client->request().id);
  if (fatal == fatal_.end()) return std::nullopt;
  return fatal->second.begin <= open.cached_tokens;
}

// Others may have to wait for the deadline of a request.
bool Liveness::IsNotBehind(const Seen& first, const Seen& other) const {
  if (IsQuarantined(other) && !other.client->request().has_own_deadline()) return true;
  return SurelyBefore(first, other);
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
  std::uint64_t places = places_ + Width(seen);
  std::uint64_t wanted = used_ + copying + Wants(seen);
  for (const auto& [id, other] : seen_) {
    const bool beside = other.waiting && IsQuarantined(other);
    if (beside) places += Width(other);
    if (!other.waiting || beside) wanted += Wants(other);
  }
  return places <= scheduler::MaxSequences(options_, group_) && wanted < group_.block_count;
}

// Whether the first of those that wait goes before all prompts that were begun, too, and could have
// its first rows now.
bool Liveness::IsFirstAndFits(const Seen& first, std::uint64_t copying) const {
  for (const auto& [id, other] : seen_) {
    if (other.waiting || !other.prompt_is_due) continue;
    if (!IsNotBehind(first, other) || MayShareAPrefix(first, other)) return false;
  }
  return Fits(first, copying);
}

// All rows of an isolated step are fatal, and rows of a shared one come before the fatal ones.
bool Liveness::QuarantinedGoesFirst(const Seen& first, const StepPlan& plan) const {
  std::map<SequenceHandle, NextRow> rows = next_rows_;
  for (const PlanOp& op : plan.ops) {
    if (const auto* open = std::get_if<OpenSequence>(&op)) {
      rows[open->sequence] = {open->request, open->cached_tokens};
    }
    const auto* run = std::get_if<Run>(&op);
    const auto row = run == nullptr ? rows.end() : rows.find(run->sequence);
    if (row == rows.end()) continue;
    const auto fatal = fatal_.find(row->second.request);
    if (fatal == fatal_.end() || row->second.position >= fatal->second.begin) continue;
    if (!SurelyBefore(first, seen_.at(row->second.request))) return true;
  }
  return false;
}

// It is first and fits, and the plan has no row of it. While requests are quarantined, an isolated
// step of each micro-batch may come before the shared ones.
absl::Status Liveness::CheckFirst(const RequestId& id, const StepPlan& plan, bool quarantined) {
  if (passed_over_.first != id) passed_over_ = {id, 0};
  const std::uint64_t plans = ++passed_over_.second;
  counts_.waited_isolated += quarantined;
  if (plans <= (quarantined ? group_.lag : 0)) return absl::OkStatus();
  return Broken(id, absl::StrCat("it is first and fits, but ", plans,
                                 " plans in a row have no row of it, plan ", plan.step.value()));
}

// Counts the prompt tokens of requests that start in this plan although one that goes before them
// waits.
absl::Status Liveness::CheckOvertaken(const RequestId& id, const Seen& waits, bool is_first,
                                      bool quarantined, const StepPlan& plan) {
  Waiter& waiter = waiters_[id];
  counts_.judged += is_first;
  std::uint64_t largest = 0;
  for (const PlanOp& op : plan.ops) {
    const auto* open = std::get_if<OpenSequence>(&op);
    if (open == nullptr) continue;
    const auto started = seen_.find(open->request);
    if (started == seen_.end() || !started->second.waiting) continue;
    if (&started->second == &waits || !SurelyBefore(waits, started->second)) continue;
    if (quarantined && StartsIsolated(started->second, *open).value_or(true)) continue;
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

absl::Status Liveness::AfterPlan(const StepPlan& plan, const States& states, Situation now) {
  const bool copies = std::any_of(plan.ops.begin(), plan.ops.end(), [](const PlanOp& op) {
    return std::holds_alternative<BackgroundCopy>(op);
  });
  const bool left_out_for_others = now.unclear || now.quarantined || copies || now.copying > 0;
  if (absl::Status s = CheckLeftOut(plan, left_out_for_others); !s.ok()) return s;
  std::set<RequestId> started, waiting;
  // The plan opens further sequences of requests that were started before, or of one that may have
  // the next isolated step.
  bool further = false;
  for (const PlanOp& op : plan.ops) {
    if (const auto* open = std::get_if<OpenSequence>(&op)) {
      const Seen& seen = seen_[open->request];
      started.insert(open->request);
      further |= !seen.waiting;
      further |= now.quarantined && !StartsIsolated(seen, *open).has_value();
    }
    further |= std::holds_alternative<ForkSequence>(op);
    const auto* copy = std::get_if<BackgroundCopy>(&op);
    now.loading |= copy != nullptr && copy->kind == BackgroundCopy::Kind::kIn;
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
             return &other == &one || !waited(other) || IsNotBehind(one.second, other.second);
           });
  });
  for (const RequestId& id : started) {
    if (seen_[id].waiting) waiters_[id] = {.preemptions = waiters_[id].preemptions};
  }
  const bool measures = MeasuresDecodes(plan);
  // Who was preempted and starts again at once waited before all others, and was not seen to.
  const auto again = [&](const RequestId& id) { return started.count(id) > 0; };
  now.unclear |= std::any_of(preempted_.begin(), preempted_.end(), again);
  unknown_fatal_ &= now.quarantined;
  // Such a plan says nothing of who is passed over. What is read back may be for the first one,
  // which then waits for that.
  if (now.loading) passed_over_ = {};
  if (now.loading || now.unclear || unknown_fatal_) return absl::OkStatus();
  const std::pair<RequestId, std::uint64_t> passed_over = std::exchange(passed_over_, {});
  // A plan does not try to start any number of requests.
  const bool tries_all = waiting.size() <= 32;
  for (const auto& [id, seen] : seen_) {
    const bool is_first = first != seen_.end() && id == first->first;
    if (is_first && started.count(id) > 0 && IsFirstAndFits(seen, now.copying)) {
      ++counts_.started;
      counts_.started_quarantined += now.quarantined;
    }
    if (!seen.waiting || !IsClear(seen) || waiting.count(id) == 0) continue;
    if (!is_first && !tries_all) continue;
    // Who waits for a prefix hides nobody.
    const bool shares = std::any_of(seen_.begin(), seen_.end(), [&](const auto& other) {
      const bool computes = other.second.prompt_is_due || started.count(other.first) > 0;
      return computes && MayShareAPrefix(seen, other.second);
    });
    if (shares) continue;
    const std::uint64_t overtaken = counts_.overtaken;
    if (absl::Status s = CheckOvertaken(id, seen, is_first, now.quarantined, plan); !s.ok()) {
      return s;
    }
    const bool others_start = further || counts_.overtaken > overtaken;
    if (!is_first || others_start || !IsFirstAndFits(seen, now.copying)) continue;
    if (QuarantinedGoesFirst(seen, plan)) continue;
    passed_over_ = passed_over;
    if (measures) {
      plans_with_chunks_ = 0;
      continue;
    }
    if (absl::Status s = CheckFirst(id, plan, now.quarantined); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace flotilla::testing
