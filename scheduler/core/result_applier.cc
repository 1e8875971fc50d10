#include "scheduler/core/result_applier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/core/beam_driver.h"

namespace flotilla::scheduler {
namespace {

// When to try again if workers had no room for a constraint: about the time of a compile.
constexpr std::int64_t kConstraintRetryMs = 2000;

absl::Status Mismatch(const SequenceResult& result, const char* what) {
  return absl::InternalError(
      absl::StrCat("result of sequence ", result.sequence.value(), ": ", what));
}

// Why a sequence ended with kError, or has no candidates.
absl::Status ErrorOf(const SequenceResult& result) {
  if (result.refused.empty()) return absl::InternalError("the model's output was not a number");
  return absl::Status(result.is_overload ? absl::StatusCode::kResourceExhausted
                                         : absl::StatusCode::kInvalidArgument,
                      absl::StrCat("the constraint of the answer: ", result.refused));
}

// Whether the row that was to give a token or candidates gave none, since its mask was late.
bool IsLate(const PlannedRun& run, const SequenceResult& result) {
  if (result.finished.has_value() || !result.refused.empty()) return false;
  return run.candidates > 0 ? result.candidates.empty() : run.samples && result.tokens.empty();
}

// Whether the step computed nothing but rows whose masks were late. It may have waited for them, so
// its time says nothing about others.
bool HasOnlyLateRows(const PlanInFlight& plan, const StepResult& result) {
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const SequenceResult& sequence = result.sequences[i];
    if (!IsLate(plan.runs[i], sequence)) return false;
  }
  return !plan.runs.empty();
}

}  // namespace

absl::Status ResultApplier::Apply(const StepResult& result) {
  if (!state_.epoch.has_value() || result.epoch != state_.epoch->epoch) return absl::OkStatus();
  EpochState& epoch = *state_.epoch;
  if (epoch.in_flight.empty() || epoch.in_flight.front().step != result.step) {
    return absl::InternalError(
        absl::StrCat("result of step ", result.step.value(), " is not the next one"));
  }
  PlanInFlight plan = std::move(epoch.in_flight.front());
  epoch.in_flight.pop_front();
  const absl::Status applied = ApplyPlan(plan, result);
  if (applied.ok()) {
    Quarantine(state_).Release();
  } else {
    epoch.in_flight.push_front(std::move(plan));  // it has no answer
  }
  return applied;
}

absl::Status ResultApplier::ApplyPlan(const PlanInFlight& plan, const StepResult& result) {
  EpochState& epoch = *state_.epoch;
  if (plan.runs.size() != result.sequences.size()) {
    return absl::InternalError(absl::StrCat("result of ", result.sequences.size(),
                                            " sequences for a plan of ", plan.runs.size()));
  }
  for (const std::uint64_t copy : result.copies_done) {
    if (!epoch.kv.CopyDone(copy)) {
      return absl::InternalError(absl::StrCat("copy ", copy, " is done but was not begun"));
    }
  }
  if (!HasOnlyLateRows(plan, result)) {
    state_.forecast.Observe(plan.shape, result.timings);
    if (state_.MaxDraftTokens() > 0) state_.costs.Observe(result.timings);
  } else {
    state_.forecast.PassOver(plan.shape);
  }
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const SequenceResult& sequence = result.sequences[i];
    if (sequence.sequence != plan.runs[i].handle) {
      return Mismatch(sequence, "it was not in the plan");
    }
    if (sequence.noop) ++state_.counters.noops;
    const std::optional<TableIndex> index = epoch.handles.Live(sequence.sequence, plan.step);
    if (absl::Status s = index.has_value() ? ApplyRun(plan.runs[i], sequence, *index)
                                           : ApplyEndedRun(plan.runs[i], sequence);
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status ResultApplier::CheckRun(const PlannedRun& run, const SequenceResult& result,
                                     const Sequence& sequence) const {
  if (result.noop) return Mismatch(result, "a no-op before the sequence finished");
  const std::uint32_t lower = sequence.length.computed;
  if (result.length < lower + run.least || result.length > lower + run.most || run.most == 0 ||
      result.length > sequence.length.max) {
    return Mismatch(result, "its length is outside the bounds");
  }
  if (result.drafted > run.depth) {
    return Mismatch(result, "more draft tokens than the plan allowed");
  }
  if (result.finished == FinishReason::kError) return absl::OkStatus();
  if (result.finished.has_value() && *result.finished != FinishReason::kStop &&
      *result.finished != FinishReason::kLength) {
    return Mismatch(result, "an ending that is not the worker's to decide");
  }
  const std::uint32_t rows = run.chunk ? run.most - 1 : 0;  // those that give no token
  const std::uint32_t tokens = !run.samples ? 0 : result.length - lower - rows;
  if (result.tokens.size() != tokens || tokens > 1 + result.drafted) {
    return Mismatch(result, "not the number of tokens that the plan asked for");
  }
  const bool is_late = run.candidates > 0 && result.length < lower + run.most;
  const bool is_dead_end = !result.refused.empty();
  if (is_dead_end && (run.candidates == 0 || is_late)) {
    return Mismatch(result, "a refusal of a sequence that goes on");
  }
  if (result.candidates.empty() != (run.candidates == 0 || is_late || is_dead_end) ||
      result.candidates.size() > run.candidates) {
    return Mismatch(result, "not the candidates that the plan asked for");
  }
  const auto known = [this](TokenId token) {
    return token >= 0 && static_cast<std::uint32_t>(token) < state_.description->vocab_size;
  };
  const auto sampled = [&](const SampledToken& t) { return known(t.token); };
  if (!std::all_of(result.tokens.begin(), result.tokens.end(), sampled) ||
      !std::all_of(result.prompt.begin(), result.prompt.end(), sampled) ||
      !std::all_of(result.candidates.begin(), result.candidates.end(),
                   [&](const TopLogprob& t) { return known(t.token); })) {
    return Mismatch(result, "a token outside the vocabulary");
  }
  const std::uint32_t outputs = state_.OutputTokens(sequence);
  if (!result.tokens.empty() && result.first_output != outputs) {
    return Mismatch(result, "not the next output token");
  }
  const StopRule& stop = state_.RequestOf(sequence).stop;
  const bool full = outputs + result.tokens.size() >= stop.max_tokens;
  if (run.samples && full && !result.finished.has_value()) {
    return Mismatch(result, "unfinished at max_tokens");
  }
  const bool went_on = std::any_of(
      result.tokens.begin(), result.tokens.end() - !result.tokens.empty(), [&](const auto& t) {
        return std::binary_search(stop.stop_tokens.begin(), stop.stop_tokens.end(), t.token);
      });
  if (went_on || outputs + result.tokens.size() > std::max(stop.max_tokens, outputs)) {
    return Mismatch(result, "tokens after the end");
  }
  return absl::OkStatus();
}

absl::Status ResultApplier::ApplyRun(const PlannedRun& run, const SequenceResult& result,
                                     TableIndex index) {
  Sequence& sequence = state_.sequences[index];
  Request& request = state_.RequestOf(sequence);
  if (absl::Status s = CheckRun(run, result, sequence); !s.ok()) return s;
  sequence.length.Answer(run.least, run.most, result.length - sequence.length.computed);
  const bool is_late = IsLate(run, result);
  state_.counters.late_rows += is_late;
  if (run.samples) sequence.NoteMask(is_late);
  if (run.samples && !run.chunk && !result.tokens.empty()) CountDraftTokens(run, result, sequence);
  if (result.finished == FinishReason::kError) {
    const absl::Status status = ErrorOf(result);
    if (result.is_overload) request.retry_after_ms = kConstraintRetryMs;
    if (request.beam != nullptr) {
      state_.EndRequest(sequence.request, FinishReason::kError, status);
    } else {
      request.status.Update(status);
      state_.EndSequence(index, FinishReason::kError, state_.OutputTokens(sequence));
    }
    return absl::OkStatus();
  }
  if (absl::Status s = EmitPromptLogprobs(run, result, request); !s.ok()) return s;
  EmitTokens(result, sequence);
  if (state_.OutputTokens(sequence) >= sequence.forecast_until) state_.UpdateForecast(sequence);
  state_.UpdateOutstanding(sequence);
  state_.epoch->kv.Publish(sequence, request, sequence.length.computed);
  if (run.candidates > 0 && is_late) {
    sequence.state = SequenceState::kPrefill;  // its last row runs again
  } else if (run.candidates > 0) {
    sequence.candidates = result.candidates;
    if (result.candidates.empty()) sequence.dead_end = ErrorOf(result);
    BeamDriver(state_).Advance(sequence.request);
  } else if (result.finished.has_value()) {
    state_.LearnOutputs(request, state_.OutputTokens(sequence), true);
    state_.EndSequence(index, *result.finished, state_.OutputTokens(sequence));
  } else if (sequence.state == SequenceState::kEnding &&
             sequence.length.computed == sequence.length.max) {
    state_.EndSequence(index, FinishReason::kLength, 0);
  }
  return absl::OkStatus();
}

// The sequence ended after the plan was sent. Others of its request do not compute again what it
// has computed of the prompt.
absl::Status ResultApplier::ApplyEndedRun(const PlannedRun& run, const SequenceResult& result) {
  if (!run.prompt_logprobs || result.finished == FinishReason::kError) return absl::OkStatus();
  const std::optional<TableIndex> index = state_.requests.Find(run.request);
  if (!index.has_value()) return absl::OkStatus();
  Request& request = state_.requests[*index];
  if (!request.admitted || request.attempt != run.attempt) return absl::OkStatus();
  return EmitPromptLogprobs(run, result, request);
}

absl::Status ResultApplier::EmitPromptLogprobs(const PlannedRun& run, const SequenceResult& result,
                                               Request& request) {
  if (!run.prompt_logprobs) return absl::OkStatus();
  const std::uint32_t last = std::min(run.begin + run.most, request.prompt_tokens - 1);
  if (result.prompt_first != run.begin + 1 || result.prompt.size() != last - run.begin) {
    return Mismatch(result, "not the log-probabilities that the plan asked for");
  }
  // A recomputation after a preemption gives some of them again; these are dropped.
  const std::uint32_t first = std::max(result.prompt_first, request.prompt_logprobs_next);
  if (first > last) return absl::OkStatus();
  PromptLogprobs event{.request = request.id, .attempt = request.attempt, .first = first};
  for (std::uint32_t at = first; at <= last; ++at) {
    event.tokens.push_back(result.prompt[at - result.prompt_first]);
  }
  request.prompt_logprobs_next = last + 1;
  state_.events.push_back(std::move(event));
  return absl::OkStatus();
}

void ResultApplier::CountDraftTokens(const PlannedRun& run, const SequenceResult& result,
                                     Sequence& sequence) {
  const auto tokens = static_cast<std::uint32_t>(result.tokens.size());
  const std::uint32_t accepted = std::max(tokens, 1u) - 1;
  state_.counters.drafted_tokens += result.drafted;
  state_.counters.accepted_tokens += accepted;
  sequence.acceptance.OnResult(run.depth, result.drafted, accepted, tokens);
}

void ResultApplier::EmitTokens(const SequenceResult& result, Sequence& sequence) {
  const Request& request = state_.RequestOf(sequence);
  for (const SampledToken& token : result.tokens) {
    state_.events.push_back(TokenEvent{.request = request.id,
                                       .attempt = request.attempt,
                                       .sequence = sequence.index,
                                       .position = state_.OutputTokens(sequence),
                                       .sampled = token});
    sequence.tokens.push_back(token.token);
    ++state_.counters.output_tokens;
  }
  if (!result.tokens.empty()) {
    state_.waiting.Charge(request.tenant, result.tokens.size() * FairShare::kOutputCost);
  }
}

}  // namespace flotilla::scheduler
