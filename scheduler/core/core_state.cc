#include "scheduler/core/core_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "scheduler/core/admission.h"
#include "scheduler/core/check.h"

namespace flotilla::scheduler {
namespace {

// The number of leading tokens that two sequences of one request share. Their prompts are
// known to be equal.
std::uint32_t CommonTokens(const Sequence& a, const Sequence& b, std::uint32_t prompt_tokens) {
  const auto most = std::min(a.tokens.size(), b.tokens.size());
  const auto from = a.tokens.begin() + prompt_tokens;
  const auto to = a.tokens.begin() + static_cast<std::ptrdiff_t>(most);
  const auto differs = std::mismatch(from, to, b.tokens.begin() + prompt_tokens).first;
  return static_cast<std::uint32_t>(differs - a.tokens.begin());
}

}  // namespace

CoreState::CoreState(const CoreOptions& options, std::unique_ptr<OrderPolicy> policy)
    : options(options),
      policy(std::move(policy)),
      fair(options.fair_share, options.tenant_weights),
      waiting(&requests, &fair, options.max_step_tokens),
      expiries(EarlierExpiry{&requests}),
      // Without a first estimate, answers are as long as they may be until some were seen.
      forecast(options.expected_output_permille > 0 ? options.expected_output_permille : 1000) {}

std::uint32_t CoreState::MaxStepTokens() const {
  return std::min(options.max_step_tokens, description->max_step_tokens);
}

std::uint32_t CoreState::MaxDraftTokens() const {
  return std::min(options.max_draft_tokens, description->max_draft_tokens);
}

std::uint32_t CoreState::MaxRunning() const { return MaxSequences(options, *description); }

bool CoreState::Before(const Request& a, const Request& b) const {
  const bool either = a.reserves() || b.reserves();
  if (!either && a.tenant != b.tenant) return fair.Before(a.tenant, b.tenant);
  return GoesBefore(a, b);
}

std::vector<TableIndex> CoreState::RunningInOrder() const {
  std::vector<TableIndex> order = running;
  if (!options.fair_share) return order;
  std::stable_sort(order.begin(), order.end(), [this](TableIndex a, TableIndex b) {
    const Sequence& x = sequences[a];
    const Sequence& y = sequences[b];
    return x.request != y.request && Before(RequestOf(x), RequestOf(y));
  });
  return order;
}

std::uint64_t CoreState::MostBlocks(const Request& request) const {
  const Extent extent{.prompt_tokens = request.prompt_tokens,
                      .max_tokens = request.stop.max_tokens,
                      .width = request.width()};
  return flotilla::scheduler::MostBlocks(extent, *description);
}

const Sequence* CoreState::OpensFirst(const Request& request) const {
  const Sequence* first = nullptr;
  for (const TableIndex index : request.sequences) {
    const Sequence& sequence = sequences[index];
    if (sequence.open()) return nullptr;
    if (first == nullptr && !sequence.fork.parent.has_value()) first = &sequence;
  }
  return first;
}

void CoreState::UpdateOutstanding(Sequence& sequence) {
  const std::uint64_t had = std::max(sequence.length.computed, sequence.fork.length);
  outstanding_tokens -= sequence.outstanding_tokens;
  sequence.outstanding_tokens = sequence.tokens.size() - had + ExpectedOutputs(sequence);
  outstanding_tokens += sequence.outstanding_tokens;
}

void CoreState::AddRunning(TableIndex index) {
  const auto before = [this](TableIndex a, TableIndex b) {
    const Sequence& x = sequences[a];
    const Sequence& y = sequences[b];
    if (x.request == y.request) return x.index < y.index;
    return GoesBefore(RequestOf(x), RequestOf(y));
  };
  running.insert(std::upper_bound(running.begin(), running.end(), index, before), index);
}

void CoreState::LeaveRunning(TableIndex index) {
  running.erase(std::find(running.begin(), running.end(), index));
}

// Chooses a parent for each sequence that is not open. The parent is the sequence that shares most
// of its tokens, among the open sequences and the sequences before it.
void CoreState::PlanForks(Request& request) {
  std::vector<TableIndex> parents;
  for (const TableIndex index : request.sequences) {
    if (sequences[index].open()) parents.push_back(index);
  }
  for (const TableIndex index : request.sequences) {
    Sequence& sequence = sequences[index];
    if (sequence.open()) continue;
    sequence.fork = ForkPlan{};
    for (const TableIndex parent : parents) {
      std::uint32_t common =
          std::min(CommonTokens(sequence, sequences[parent], request.prompt_tokens),
                   static_cast<std::uint32_t>(sequence.tokens.size()) - 1);
      if (sequences[parent].open()) common = epoch->kv.ForkLength(sequences[parent], common);
      // An open parent may have given back blocks that it has seen the last of.
      const bool has_blocks = !sequences[parent].open() || !epoch->kv.has_windows() ||
                              epoch->kv.CanFork(sequences[parent], common);
      if (has_blocks && common > sequence.fork.length)
        sequence.fork = {.parent = parent, .length = common};
    }
    UpdateOutstanding(sequence);
    parents.push_back(index);
  }
}

void CoreState::Enqueue(TableIndex index) {
  Request& request = requests[index];
  PlanForks(request);
  request.waiting_tokens = request.waiting_rows = 0;
  for (const TableIndex at : request.sequences) {
    Sequence& sequence = sequences[at];
    UpdateForecast(sequence);
    UpdateOutstanding(sequence);
    const std::uint64_t tokens = sequence.tokens.size() - sequence.fork.length;
    request.waiting_tokens += tokens;
    request.waiting_rows += tokens + ExpectedOutputs(sequence);
  }
  request.order = policy->Key(request, PredictNs(request, 0));
  const Sequence& first = sequences[request.sequences.front()];
  request.starts_isolated = first.fatal.any() && first.fatal.begin == 0;
  request.demoted = false;
  waiting.Push(index);
}

void CoreState::Demote(TableIndex index) {
  Request& request = requests[index];
  const std::uint64_t tokens = request.waiting_tokens, rows = request.waiting_rows;
  waiting.Remove(index);
  request.order = {.group = std::numeric_limits<std::int64_t>::max()};
  request.demoted = true;
  request.waiting_tokens = tokens;
  request.waiting_rows = rows;
  waiting.Push(index);
}

void CoreState::AdmitRequest(TableIndex index) {
  Request& request = requests[index];
  request.tried = request.deadline_ns.has_value() && HasUnknownLength(request);
  const bool shortest = waiting.shortest() == index;
  waiting.Remove(index);
  // Once it runs, it gives way only to those that its own class gives way to.
  if (request.demoted) request.order = policy->Key(request, PredictNs(request, 0));
  request.demoted = false;
  counters.resumptions += request.was_admitted;
  request.admitted = true;
  const bool overtook = std::exchange(overtaken, counters.bypasses) < counters.bypasses;
  overtaking += (overtook && shortest ? 1024 : 0) - overtaking / 64;
  request.overtaken_rows = 0;
  reserved_sequences += request.width();
  for (const TableIndex sequence : request.sequences) {
    sequences[sequence].state = SequenceState::kPending;
    AddRunning(sequence);
  }
}

TableIndex CoreState::AddSequence(Sequence sequence) {
  Request& request = RequestOf(sequence);
  sequence.state = SequenceState::kPending;
  const SequenceIndex number = sequence.index;
  const TableIndex index = sequences.Insert(std::move(sequence));
  sequences[index].self = index;
  const auto at =
      std::lower_bound(request.sequences.begin(), request.sequences.end(), number,
                       [this](TableIndex a, SequenceIndex i) { return sequences[a].index < i; });
  request.sequences.insert(at, index);
  AddRunning(index);
  UpdateForecast(sequences[index]);
  UpdateOutstanding(sequences[index]);
  return index;
}

// Frees the blocks and the handle of an open sequence.
void CoreState::Detach(Sequence& sequence) {
  epoch->kv.Close(sequence, RequestOf(sequence));
  epoch->handles.Retire(sequence.handle);
  --epoch->micro_batch_sizes[sequence.micro_batch];
}

void CoreState::DropSequence(TableIndex index) {
  Sequence& sequence = sequences[index];
  Request& request = RequestOf(sequence);
  if (sequence.open()) Detach(sequence);
  if (request.admitted) {
    LeaveRunning(index);
    if (request.beam == nullptr) --reserved_sequences;
  }
  outstanding_tokens -= sequence.outstanding_tokens;
  forecast.lengths().Report(request.answer_class, sequence.reported, 0);
  request.sequences.erase(std::find(request.sequences.begin(), request.sequences.end(), index));
  if (epoch.has_value()) epoch->kv.Forget(sequence);
  sequences.Erase(index);
  const bool was_parent =
      std::any_of(request.sequences.begin(), request.sequences.end(), [&](TableIndex other) {
        return !sequences[other].open() && sequences[other].fork.parent == index;
      });
  if (was_parent) PlanForks(request);
}

void CoreState::CountReason(FinishReason reason) {
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
}

void CoreState::EmitSequenceEnd(Request& request, SequenceIndex index, FinishReason reason,
                                std::uint32_t kept, float score) {
  request.output_tokens += kept;
  request.reason = reason;
  events.push_back(SequenceEnd{.request = request.id,
                               .attempt = request.attempt,
                               .sequence = index,
                               .reason = reason,
                               .output_tokens = kept,
                               .score = score});
}

void CoreState::EndSequence(TableIndex index, FinishReason reason, std::uint32_t kept) {
  const TableIndex owner = sequences[index].request;
  Request& request = requests[owner];
  FLOTILLA_CORE_CHECK(request.beam == nullptr);
  const bool waits = !request.admitted;
  if (waits) waiting.Remove(owner);
  const SequenceIndex number = sequences[index].index;
  DropSequence(index);
  EmitSequenceEnd(request, number, reason, kept);
  if (request.sequences.empty()) {
    Forget(owner);
  } else if (waits) {
    Enqueue(owner);
  }
}

void CoreState::EndRequest(TableIndex index, FinishReason reason, absl::Status status) {
  Request& request = requests[index];
  if (request.status.ok()) request.status = std::move(status);
  if (!request.admitted) waiting.Remove(index);
  if (request.beam != nullptr) {
    for (std::uint32_t i = 0; i < request.answers; ++i) {
      if (!request.beam->cancelled[i]) EmitSequenceEnd(request, SequenceIndex(i), reason, 0);
    }
  }
  for (const TableIndex sequence : request.sequences) {
    if (request.beam != nullptr) break;
    EmitSequenceEnd(request, sequences[sequence].index, reason, OutputTokens(sequences[sequence]));
  }
  for (const TableIndex sequence : request.sequences) {
    const std::uint32_t made = OutputTokens(sequences[sequence]);
    if (reason == FinishReason::kDeadline && made > 0) LearnOutputs(request, made, false);
  }
  while (!request.sequences.empty()) DropSequence(request.sequences.back());
  Forget(index);
}

void CoreState::Forget(TableIndex index) {
  Request& request = requests[index];
  fair.Leave(request.tenant);
  Quarantine(*this).Remove(index);
  if (request.admitted && request.beam != nullptr) reserved_sequences -= request.width();
  expiries.Remove(index);
  deadlines -= request.deadline_ns.has_value();
  CountReason(request.reason);
  events.push_back(RequestEnd{.request = request.id,
                              .attempt = request.attempt,
                              .status = std::move(request.status),
                              .retry_after_ms = request.retry_after_ms,
                              .usage = Usage{.prompt_tokens = request.prompt_tokens,
                                             .output_tokens = request.output_tokens,
                                             .cached_tokens = request.cached_tokens,
                                             .preemptions = request.preemptions,
                                             .decode_preemptions = request.decode_preemptions}});
  requests.Erase(index);
}

// The sequences of the request must be in no list and hold no blocks or handles.
void CoreState::Requeue(TableIndex index) {
  Request& request = requests[index];
  reserved_sequences -= request.width();
  request.admitted = false;
  if (quarantine.isolated == index) quarantine.isolated.reset();
  for (const TableIndex at : request.sequences) {
    Sequence& sequence = sequences[at];
    sequence.state = SequenceState::kWaiting;
    sequence.length.Settle(0);
    sequence.sent_depth = 0;
    sequence.fork = ForkPlan{};
    sequence.deferred = false;
    sequence.candidates.clear();
    sequence.dead_end = absl::OkStatus();
  }
  Enqueue(index);
}

void CoreState::Preempt(TableIndex index, TableIndex winner) {
  constexpr std::size_t kMostRecent = 256;
  Request& request = requests[index];
  const auto available = [this] { return epoch->kv.pool().available() + epoch->kv.HeldByCopies(); };
  const std::uint32_t before = available();
  const bool decoded =
      std::any_of(request.sequences.begin(), request.sequences.end(), [&](TableIndex at) {
        return sequences[at].open() && OutputTokens(sequences[at]) > 0 &&
               (sequences[at].state == SequenceState::kDecode || request.beam != nullptr);
      });
  request.decode_preemptions += decoded;
  ++request.preemptions;
  request.protection = ProtectionAfter(request.preemptions, options.max_preemptions);
  caution += (kMostCaution - caution) / 4;
  std::vector<BlockId> blocks;  // those in the prefix index
  for (const TableIndex at : request.sequences) {
    Sequence& sequence = sequences[at];
    if (sequence.open()) {
      const std::vector<BlockId> more = epoch->kv.BlocksToStore(sequence);
      blocks.insert(blocks.end(), more.begin(), more.end());
      Detach(sequence);
    }
    LeaveRunning(at);
  }
  const KvTiers& tiers = epoch->kv.tiers();
  Preemption record{.victim = request.id,
                    .winner = requests[winner].id,
                    .decoding = decoded,
                    .blocks = available() - before,
                    .swap_ns = tiers.SwapNs(),
                    .recompute_ns = epoch->kv.RecomputeNs(RecomputeNs())};
  const KvCacheManager::Stored stored = epoch->kv.Store(blocks, RecomputeNs());
  record.swapped_blocks = stored.kept;
  record.reason = stored.kept > 0    ? PreemptionReason::kSwapped
                  : !tiers.any()     ? PreemptionReason::kNoTier
                  : stored.able == 0 ? PreemptionReason::kNoWholeBlock
                                     : PreemptionReason::kRecomputed;
  const std::int64_t computed = record.blocks - std::min(record.blocks, stored.kept);
  record.cost_ns = stored.kept * record.swap_ns + computed * record.recompute_ns;
  Requeue(index);
  ++counters.preemptions;
  counters.swapped += stored.kept > 0;
  counters.blocks_out += stored.begun;
  PreemptionTotals& totals = counters.preempted[static_cast<std::size_t>(record.reason)];
  ++totals.count;
  totals.decoding += decoded;
  totals.blocks += record.blocks;
  totals.cost_ns += record.cost_ns;
  if (preemptions.size() < kMostRecent) preemptions.push_back(record);
}

std::vector<RefusedPlans::Candidate> CoreState::OperationsOf(std::optional<Step> step) const {
  std::vector<RefusedPlans::Candidate> candidates;
  if (epoch->in_flight.empty()) return candidates;
  const auto& plans = epoch->in_flight;
  auto plan = std::find_if(plans.begin(), plans.end(),
                           [&](const PlanInFlight& one) { return one.step == step; });
  if (plan == plans.end()) plan = plans.begin();
  const bool chunks = std::any_of(plan->runs.begin(), plan->runs.end(),
                                  [](const PlannedRun& run) { return run.chunk; });
  for (const PlannedRun& run : plan->runs) {
    const std::optional<TableIndex> live = epoch->handles.Live(run.handle, plan->step);
    if (run.most == 0 || !live.has_value() || (chunks && !run.chunk)) continue;
    const Sequence& sequence = sequences[*live];
    const RequestId& id = RequestOf(sequence).id;
    const auto same = [&](const RefusedPlans::Candidate& candidate) {
      return candidate.request == id;
    };
    auto at = std::find_if(candidates.begin(), candidates.end(), same);
    if (at == candidates.end()) at = candidates.insert(at, {.request = id});
    at->cleared_at = std::max(at->cleared_at, sequence.length.scheduled_max);
  }
  std::sort(candidates.begin(), candidates.end(), [this](const auto& a, const auto& b) {
    return requests[*requests.Find(a.request)].arrival <
           requests[*requests.Find(b.request)].arrival;
  });
  return candidates;
}

void CoreState::UpdateRefusedPlans(std::int64_t now_ns) {
  refused_plans.Update(now_ns, [this](const RequestId& id) -> std::optional<std::uint32_t> {
    const std::optional<TableIndex> index = requests.Find(id);
    if (!index.has_value()) return std::nullopt;
    std::uint32_t computed = 0;
    for (const TableIndex at : requests[*index].sequences) {
      computed = std::max(computed, sequences[at].length.computed);
    }
    return computed;
  });
  const std::size_t candidates = refused_plans.candidates();
  if (candidates == 0 && held_back == 0) return;
  for (const TableIndex index : requests.Indices()) {
    Request& request = requests[index];
    const bool hold = !refused_plans.MayStart(request.id);
    if (request.admitted || request.held_back == hold) continue;
    waiting.Remove(index);
    request.held_back = hold;
    Enqueue(index);
  }
  held_back = candidates;
}

void CoreState::LoseEpoch() {
  running.clear();
  for (const TableIndex index : requests.Indices()) {
    if (!requests[index].admitted) continue;
    ++counters.replays;
    Requeue(index);
  }
  epoch.reset();
}

}  // namespace flotilla::scheduler
