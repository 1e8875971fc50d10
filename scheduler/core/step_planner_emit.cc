// The third part of StepPlanner: writes what was decided as a plan.
#include <algorithm>
#include <utility>

#include "scheduler/core/step_planner.h"

namespace flotilla::scheduler {

void StepPlanner::EmitDeferrals() {
  for (const TableIndex index : short_of_blocks_) {
    Sequence& sequence = state_.sequences[index];
    sequence.deferred = true;
    if (sequence.state != SequenceState::kDecode) continue;  // a prompt needs no Defer
    plan_.ops.push_back(Defer{.sequence = sequence.handle});
    state_.epoch->kv.AddDefer(plan_.step, sequence.handle);
    ++state_.counters.deferrals;
  }
  for (const auto* indices : {&for_other_steps_, &backing_off_}) {
    for (const TableIndex index : *indices) {
      Sequence& sequence = state_.sequences[index];
      sequence.backoff -= std::min(sequence.backoff, 1u);
      plan_.ops.push_back(Defer{.sequence = sequence.handle});
      state_.epoch->kv.AddDefer(plan_.step, sequence.handle);
      ++state_.counters.deferrals;
    }
  }
}

// Sequences are opened before any run, so that forks copy what earlier plans wrote. Those
// with blocks from the prefix cache are opened first, before these blocks are evicted.
void StepPlanner::EmitOpens() {
  for (const bool forks : {false, true}) {
    for (const PendingOpen& open : opens_) {
      if (state_.sequences[open.index].fork.parent.has_value() == forks) EmitOpen(open);
    }
  }
}

void StepPlanner::EmitOpen(const PendingOpen& open) {
  EpochState& epoch = *state_.epoch;
  Sequence& sequence = state_.sequences[open.index];
  if (sequence.fork.parent.has_value()) {
    sequence.handle = epoch.handles.Take(open.index, plan_.step);
    sequence.micro_batch = SmallestMicroBatch();
    ++epoch.micro_batch_sizes[sequence.micro_batch];
    const Sequence& parent = state_.sequences[*sequence.fork.parent];
    state_.counters.block_copies +=
        epoch.kv.Fork(parent, sequence, state_.RequestOf(sequence), plan_);
    ++state_.counters.forks;
    Opened(sequence);
  } else {
    Open(open.index, open.match);
  }
}

void StepPlanner::Opened(Sequence& sequence) {
  sequence.opened = plan_.step;
  sequence.late_in_a_row = sequence.backoff = 0;
  sequence.state = SequenceState::kPrefill;
  sequence.prefill_tokens = static_cast<std::uint32_t>(sequence.tokens.size());
  state_.UpdateOutstanding(sequence);
}

// Opens a sequence that does not fork.
void StepPlanner::Open(TableIndex index, const KvCacheManager::Match& match) {
  EpochState& epoch = *state_.epoch;
  Sequence& sequence = state_.sequences[index];
  Request& request = state_.RequestOf(sequence);
  sequence.fork = ForkPlan{};
  sequence.handle = epoch.handles.Take(index, plan_.step);
  sequence.micro_batch = SmallestMicroBatch();
  ++epoch.micro_batch_sizes[sequence.micro_batch];
  epoch.kv.Open(sequence, request, match, plan_);
  state_.counters.lookup_tokens += sequence.tokens.size();
  state_.counters.cached_tokens += sequence.length.scheduled_max;
  if (!request.was_admitted) {
    request.cached_tokens = std::min(sequence.length.scheduled_max, request.prompt_tokens);
  }
  request.was_admitted = true;
  Opened(sequence);
}

void StepPlanner::EmitDecodes() {
  if (isolated_.has_value()) state_.quarantine.isolated = isolated_;
  for (const TableIndex index : finished_) {
    const Sequence& sequence = state_.sequences[index];
    runs_.push_back({.handle = sequence.handle, .samples = true});
  }
  for (const TableIndex index : decodes_) {
    Sequence& sequence = state_.sequences[index];
    const std::uint32_t least = sequence.constrained ? 0 : 1;
    sequence.length.Send(least, 1);
    state_.epoch->kv.Allocate(sequence, sequence.length.scheduled_max, plan_);
    sequence.deferred = false;
    runs_.push_back({.handle = sequence.handle, .least = least, .most = 1, .samples = true});
  }
}

// Sequences that are not open yet fork behind the prompt at the earliest, or where its last run
// begins.
void StepPlanner::ReleaseFronts() {
  KvCacheManager& kv = state_.epoch->kv;
  if (!kv.has_windows()) return;
  for (const TableIndex index : state_.running) {
    const Sequence& sequence = state_.sequences[index];
    if (!sequence.open()) continue;
    const Request& request = state_.RequestOf(sequence);
    const bool all_open =
        std::all_of(request.sequences.begin(), request.sequences.end(),
                    [this](TableIndex other) { return state_.sequences[other].open(); });
    // Where sequences that are to come may fork.
    std::uint32_t earliest = ~std::uint32_t{0};
    if (!all_open) earliest = kv.RunBegin(request.prompt_tokens - 1);
    if (request.beam != nullptr) {
      earliest = std::min(earliest, kv.RunBegin(sequence.length.computed_min));
    }
    kv.ReleaseFronts(sequence, earliest);
  }
}

bool StepPlanner::TrimSequences() {
  bool trimmed = false;
  for (const TableIndex index : state_.running) {
    Sequence& sequence = state_.sequences[index];
    if (sequence.open()) trimmed |= state_.epoch->kv.Trim(sequence, plan_);
  }
  state_.counters.trims += trimmed;
  return trimmed;
}

// The most draft tokens that rows, blocks and the sequence's maximum length allow. They
// never use blocks that begun prompts still need, or those of watermark_blocks.
std::uint32_t StepPlanner::AllowedDraftTokens(const Sequence& sequence) const {
  const std::uint32_t most = std::min(
      {state_.MaxDraftTokens(), budget_, sequence.length.max - sequence.length.computed_min});
  const std::uint64_t kept =
      promised_blocks_ + std::uint64_t{state_.options.watermark_blocks} * state_.reserved_sequences;
  const std::uint64_t blocks = free_blocks_ > kept ? free_blocks_ - kept : 0;
  const std::uint32_t upper = sequence.length.scheduled_max;
  const std::uint32_t end = std::min(upper + most, sequence.StepEnd(upper));
  // No position beyond the sequence's maximum is ever written.
  if (state_.epoch->kv.BlocksNeeded(sequence, end) <= blocks) return end - upper;
  return state_.epoch->kv.LongestWithin(sequence, end, blocks) - upper;
}

void StepPlanner::EmitDraftTokens() {
  if (state_.MaxDraftTokens() == 0) return;
  SpeculationLoad load{.rows = static_cast<std::uint32_t>(decodes_.size()),
                       .tokens = decodes_.size() * std::uint64_t{DraftAcceptance::kSure},
                       .prefill_ns = state_.forecast.PrefillPartNs(shape_)};
  const bool nobody = !short_of_blocks_.empty() || state_.costs.Stale(load.rows);
  for (std::size_t i = 0; i < decodes_.size(); ++i) {
    Sequence& sequence = state_.sequences[decodes_[i]];
    const std::uint32_t most = nobody ? 0 : AllowedDraftTokens(sequence);
    const std::uint32_t depth =
        most == 0 ? 0 : ChooseDepth(sequence.acceptance, load, state_.costs, most);
    load.rows += depth;
    load.tokens += ExpectedTokens(sequence.acceptance.chance(), depth);
    EmitDraftTokens(sequence, runs_[finished_.size() + i], depth);
  }
}

void StepPlanner::EmitDraftTokens(Sequence& sequence, PlannedRun& run, std::uint32_t depth) {
  if (sequence.sent_depth != depth) {
    const Speculate op{.sequence = sequence.handle, .depth = depth};
    state_.epoch->kv.AddSpeculate(plan_.step, op);
    plan_.ops.push_back(op);
    sequence.sent_depth = depth;
  }
  if (depth == 0) return;
  run.depth = depth;
  run.most += depth;
  budget_ -= depth;
  shape_.AddDecode(sequence.length.scheduled_max, depth);
  sequence.length.Send(0, depth);
  const std::uint64_t takes =
      state_.epoch->kv.BlocksNeeded(sequence, sequence.length.scheduled_max);
  free_blocks_ -= takes;
  available_blocks_ -= takes;
  state_.epoch->kv.Allocate(sequence, sequence.length.scheduled_max, plan_);
}

void StepPlanner::EmitChunk(TableIndex index, std::uint32_t rows) {
  Sequence& sequence = state_.sequences[index];
  const std::uint32_t begin = sequence.length.scheduled_max;
  const std::uint32_t end = begin + rows;
  const Request& request = state_.RequestOf(sequence);
  const bool last = end == sequence.prefill_tokens;
  const bool samples = last && request.stop.max_tokens > 0 && request.beam == nullptr;
  const bool chooses = last && request.beam != nullptr;
  const std::uint32_t least = (samples || chooses) && sequence.constrained ? rows - 1 : rows;
  sequence.length.Send(least, rows);
  sequence.last_chunk = plan_.step;
  sequence.deferred = false;
  state_.epoch->kv.Allocate(sequence, end, plan_);
  state_.epoch->kv.Publish(sequence, request, begin + least);

  if (last) sequence.state = samples ? SequenceState::kDecode : SequenceState::kEnding;
  // Row i gives the log-probability of prompt token i + 1, if there is such a token and its
  // log-probability was not delivered before a preemption.
  const std::uint32_t last_prompt = std::min(end, request.prompt_tokens - 1);
  const bool prompt_logprobs = request.logprobs.prompt_top != LogprobSpec::kOff &&
                               last_prompt > begin && last_prompt >= request.prompt_logprobs_next;
  Run run{.sequence = sequence.handle,
          .count = rows,
          .sample = samples,
          .prompt_logprobs = prompt_logprobs,
          .append = {sequence.tokens.begin() + sequence.sent_tokens, sequence.tokens.end()},
          .candidates = chooses ? request.beam->search.candidates() : 0};
  sequence.sent_tokens = static_cast<std::uint32_t>(sequence.tokens.size());
  state_.epoch->kv.AddRun(plan_.step, run);
  runs_.push_back({.handle = sequence.handle,
                   .begin = begin,
                   .least = least,
                   .most = rows,
                   .chunk = true,
                   .samples = samples,
                   .prompt_logprobs = prompt_logprobs,
                   .request = prompt_logprobs ? request.id : RequestId(),
                   .attempt = request.attempt,
                   .candidates = run.candidates});
  plan_.ops.push_back(std::move(run));
  ChargePrompt(state_.RequestOf(sequence), begin, end);
  state_.counters.prefill_tokens += rows;
}

// Charges the tenant for the rows of the prompt that are computed for the first time.
void StepPlanner::ChargePrompt(Request& request, std::uint32_t begin, std::uint32_t end) {
  const std::uint32_t from = std::max(begin, request.charged_tokens);
  const std::uint32_t to = std::min(end, request.prompt_tokens);
  if (to <= from) return;
  request.charged_tokens = to;
  state_.waiting.Charge(request.tenant, std::uint64_t{to - from} * FairShare::kPromptCost);
}

std::uint32_t StepPlanner::SmallestMicroBatch() const {
  const std::vector<std::uint32_t>& sizes = state_.epoch->micro_batch_sizes;
  return static_cast<std::uint32_t>(std::min_element(sizes.begin(), sizes.end()) - sizes.begin());
}

// Opens the request's first sequence. The others stay pending for now.
void StepPlanner::Admit(const Admission& admission, std::uint32_t most) {
  const KvCacheManager& kv = state_.epoch->kv;
  const Request& request = state_.requests[admission.request];
  const std::uint64_t needs = AdmissionNeeds(request, admission.match);
  CountOvertaken(admission.request);
  expected_.reset();
  reserved_requests_ |= request.reserves();
  state_.AdmitRequest(admission.request);
  const TableIndex first = request.sequences.front();
  Sequence& sequence = state_.sequences[first];
  Open(first, admission.match);
  CountInPlan(request);

  const std::uint32_t begin = sequence.length.scheduled_max;
  const std::uint32_t rows =
      std::max(RowsOfTarget(begin, std::min({RowsLeft(sequence), MaxChunk(), most}),
                            lender_ == admission.request),
               1u);
  const std::uint64_t takes = admission.match.pinned + CountedOn(admission.match) +
                              kv.BlocksNeeded(sequence, sequence.length.scheduled_max + rows);
  available_blocks_ -= takes;
  free_blocks_ -= std::min(free_blocks_, request.reserves() ? needs : takes);
  if (request.non_preemptible()) kept_blocks_ += needs - takes;
  Promise(request, needs - takes);
  budget_ -= rows;
  shape_.AddChunk(begin, rows);
  EmitChunk(first, rows);
}

}  // namespace flotilla::scheduler
