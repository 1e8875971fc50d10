// The part of CoreState that asks the forecast: how long requests take, and when they start.
#include <algorithm>
#include <utility>

#include "scheduler/core/admission.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/policy.h"

namespace flotilla::scheduler {
namespace {

// A forecast is off by some percent, so a request that only just makes it is as likely late. One
// part in so many is left.
constexpr std::int64_t kForecastMargin = 12;

// What is left of the prompts that have begun.
StepShape BegunPrompts(const CoreState& state) {
  StepShape shape;
  for (const TableIndex index : state.running) {
    const Sequence& sequence = state.sequences[index];
    const std::uint64_t known = sequence.tokens.size();
    const std::uint64_t had = std::max(sequence.length.scheduled_max, sequence.fork.length);
    if (had < known) shape.AddChunk(had, known - had);
  }
  return shape;
}

}  // namespace

std::int64_t CoreState::RecomputeNs() const {
  const std::uint32_t tokens = description->groups[0].tokens_per_block;
  return forecast.PrefillNs(0, tokens, MaxStepTokens()) - forecast.steps().PredictNs({}) +
         forecast.steps().PredictNs({}) * tokens / MaxStepTokens();
}

void CoreState::UpdateForecast(Sequence& sequence) {
  const Request& request = RequestOf(sequence);
  const std::uint32_t most = request.stop.max_tokens, made = OutputTokens(sequence);
  sequence.forecast = request.beam != nullptr
                          ? OutputForecast{.mean = most, .upper = most}
                          : forecast.lengths().Predict(request.answer_class, made, most);
  // A forecast is good until an eighth more has been made.
  sequence.forecast_until = made + made / 8 + 4;
}

std::uint64_t CoreState::RemainingOf(const Sequence& sequence, std::uint32_t outputs) const {
  const std::uint32_t most = RequestOf(sequence).stop.max_tokens;
  const std::uint32_t made = std::min(OutputTokens(sequence), most);
  return std::clamp(outputs, std::min(made + 1, most), most) - made;
}

std::uint64_t CoreState::ExpectedOutputs(const Sequence& sequence) const {
  const Request& request = RequestOf(sequence);
  return RemainingOf(
      sequence, request.has_exact_outputs() ? request.stop.max_tokens : sequence.forecast.mean);
}

std::uint64_t CoreState::MemoryOutputs(const Sequence& sequence) const {
  const OutputForecast& all = sequence.forecast;
  const std::uint64_t more = std::uint64_t{all.upper - all.mean} * caution / kMostCaution;
  return RemainingOf(sequence, all.mean + static_cast<std::uint32_t>(more));
}

void CoreState::LearnOutputs(const Request& request, std::uint32_t outputs, bool ended_itself) {
  caution -= ended_itself ? caution / 16 : 0;
  if (request.beam != nullptr || request.stop.max_tokens == 0) return;
  if (!ended_itself) {
    outputs = forecast.lengths().Impute(request.answer_class, outputs, request.stop.max_tokens);
  }
  forecast.lengths().Learn(request.answer_class, outputs);
}

StepShape CoreState::RunningShape() const {
  StepShape shape;
  for (const TableIndex index : running) shape.AddDecode(sequences[index].tokens.size());
  return shape;
}

std::int64_t CoreState::PredictNs(const Request& request, std::uint64_t cached_tokens) const {
  StepShape beside;
  std::uint64_t tokens = 0, longest = 0;
  for (const TableIndex at : request.sequences) {
    const Sequence& sequence = sequences[at];
    tokens += sequence.tokens.size() - sequence.fork.length;
    longest = std::max(longest, ExpectedOutputs(sequence));
    beside.AddDecode(sequence.tokens.size());
  }
  const StepShape others = RunningShape();
  beside.decode_rows += others.decode_rows;
  beside.decode_context += others.decode_context;
  return forecast.PrefillNs(cached_tokens, tokens - std::min(tokens, cached_tokens),
                            MaxStepTokens()) +
         static_cast<std::int64_t>(longest) * forecast.DecodeStepNs(beside);
}

// The sequences that decode now, in the order in which they are expected to end, as (steps left,
// length).
CoreState::Decodes CoreState::DecodesBeside(const Request& request) const {
  Decodes others;
  for (const TableIndex index : running) {
    const Sequence& other = sequences[index];
    if (&RequestOf(other) == &request || other.state != SequenceState::kDecode) continue;
    others.emplace_back(ExpectedOutputs(other), other.tokens.size());
  }
  std::sort(others.begin(), others.end());
  return others;
}

// The time of `steps` steps of one decode of length `length` beside others, which end one after
// another.
std::int64_t CoreState::DecodesNs(std::uint64_t steps, std::uint64_t length,
                                  const Decodes& others) const {
  StepShape shape;
  shape.AddDecode(length);
  for (const auto& [left, other] : others) shape.AddDecode(other);
  std::uint64_t done = 0;
  std::int64_t ns = 0;
  const auto run_until = [&](std::uint64_t step) {
    const auto more = static_cast<std::int64_t>(std::max(std::min(step, steps), done) - done);
    ns = std::min(ns + more * forecast.steps().PredictNs(shape), StepTimeModel::kMostNs);
    done += static_cast<std::uint64_t>(more);
  };
  for (const auto& [left, other] : others) {
    run_until(left);
    shape.decode_rows -= 1;
    shape.decode_context -= other + 1;
  }
  run_until(steps);
  return ns;
}

// The others are taken to make the tokens that they are expected to make, and the request the
// fewest that all but one in twenty such requests make.
std::int64_t CoreState::QuickestNs(const Request& request, std::uint64_t cached_tokens) const {
  std::uint64_t tokens = 0, outputs = 0, longest = 0;
  const std::uint64_t least = request.has_exact_outputs()
                                  ? request.stop.max_tokens
                                  : forecast.lengths().Least(request.answer_class, 50);
  for (const TableIndex at : request.sequences) {
    const Sequence& sequence = sequences[at];
    const std::uint64_t had = std::max(sequence.length.computed, sequence.fork.length);
    const std::uint64_t made = OutputTokens(sequence);
    tokens += sequence.tokens.size() - std::min<std::uint64_t>(had, sequence.tokens.size());
    outputs = std::max(outputs, std::max(least, made + 1) - made);
    longest = std::max<std::uint64_t>(longest, sequence.tokens.size());
  }
  tokens -= std::min(tokens, cached_tokens);
  const auto others = DecodesBeside(request);
  const std::uint64_t most = MaxStepTokens();
  const std::uint64_t rows = most - std::min<std::uint64_t>(others.size(), most - 1);
  // The step that computes the last token of the prompt gives the first output.
  const std::uint64_t prompt_steps = (tokens + rows - 1) / rows;
  StepShape prompt;
  prompt.AddChunk(cached_tokens, tokens);
  const std::int64_t ns = forecast.PrefillPartNs(prompt) +
                          DecodesNs(prompt_steps + outputs - (prompt_steps > 0), longest, others);
  return forecast.steps().QuickestNs(std::min(ns, StepTimeModel::kMostNs), std::min(tokens, rows));
}

bool CoreState::SurelyLate(const Request& request) {
  if (!request.deadline_ns.has_value()) return false;
  if (now_ns + QuickestNs(request, 0) <= *request.deadline_ns) return false;
  return request.admitted || now_ns + QuickestNs(request, Cached(request)) > *request.deadline_ns;
}

bool CoreState::ExpectedLate(const Request& request) {
  if (!request.deadline_ns.has_value()) return false;
  const std::int64_t begun_ns = forecast.PrefillPartNs(BegunPrompts(*this));
  const auto is_late = [&](std::uint32_t cached) {
    const std::int64_t ns = begun_ns + PredictNs(request, cached);
    return now_ns + ns + ns / kForecastMargin > *request.deadline_ns;
  };
  return is_late(0) && is_late(Cached(request));
}

std::uint32_t CoreState::Cached(const Request& request) {
  return epoch->kv.PositionsOf(epoch->kv.FindPrefix(sequences[request.sequences.front()], request));
}

bool CoreState::LeavesTime(const Request& request) const {
  if (deadlines.empty()) return true;
  const StepShape before = RunningShape();
  StepShape after = before;
  for (const TableIndex at : request.sequences) after.AddDecode(sequences[at].tokens.size());
  const auto careful = [this](const StepShape& shape) {
    return forecast.DecodeStepNs(shape) * (kForecastMargin + 1) / kForecastMargin;
  };
  const std::int64_t step = careful(before), longer = careful(after);
  std::size_t late = 0, made_late = 0, all = 0;
  for (const TableIndex index : running) {
    const Sequence& sequence = sequences[index];
    const Request& other = RequestOf(sequence);
    if (!other.deadline_ns.has_value()) continue;
    const auto steps = static_cast<std::int64_t>(ExpectedOutputs(sequence));
    ++all;
    const bool is_late = now_ns + steps * step > *other.deadline_ns;
    late += is_late;
    made_late += !is_late && now_ns + steps * longer > *other.deadline_ns;
  }
  // Some are late whatever happens. When most are, the batch is too large.
  constexpr std::size_t kSome = 4;
  return made_late <= request.sequences.size() && (late <= kSome || 2 * late <= all);
}

ForecastEntry CoreState::EntryOf(const TokenizedRequest& request) const {
  ForecastEntry entry;
  entry.request.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  entry.request.stop = request.stop;
  entry.request.deadline_ns = request.deadline_ns;
  entry.request.priority = request.priority;
  entry.request.arrival = next_arrival;
  entry.request.non_preemptible = options.max_preemptions == 0;
  entry.request.answer_class =
      AnswerClass::Of(request.tenant, request.stop.max_tokens, true, entry.request.prompt_tokens);
  const std::uint32_t most = request.stop.max_tokens;
  const bool exact = request.beam.has_value() || request.stop.stop_tokens.empty();
  const std::uint64_t outputs =
      exact ? most : forecast.lengths().Predict(entry.request.answer_class, 0, most).mean;
  const std::uint64_t length = request.prompt.size() + outputs;
  StepShape beside = RunningShape();
  beside.AddDecode(length);
  entry.run_ns = forecast.PrefillNs(0, request.prompt.size(), MaxStepTokens()) +
                 static_cast<std::int64_t>(outputs) * forecast.DecodeStepNs(beside);
  entry.request.order = policy->Key(entry.request, entry.run_ns);
  entry.needs.steps = request.prompt.size() / MaxStepTokens() + outputs;
  entry.needs.width = request.beam ? request.beam->beams : request.sequences;
  if (epoch.has_value()) entry.needs.blocks = entry.needs.width * epoch->kv.BlocksFor(length);
  return entry;
}

// Adds the running sequences to the queue. Those that are in flight have made a step that is not
// counted yet.
void CoreState::AddRunning(ForecastQueue& queue) const {
  for (const TableIndex index : running) {
    const Sequence& sequence = sequences[index];
    const std::uint64_t known = sequence.tokens.size(), outputs = ExpectedOutputs(sequence);
    const std::uint64_t left =
        known - std::min<std::uint64_t>(
                    known, std::max(sequence.length.scheduled_max, sequence.fork.length));
    queue.begun_tokens += left;
    queue.running.push_back({.steps = left / MaxStepTokens() + outputs,
                             .width = 1,
                             .blocks = epoch->kv.BlocksFor(known + outputs)});
  }
}

// Adds the waiting requests that go before `request`. Tenants that share the group take turns, so
// none of them has many more requests before it than its own tenant has.
void CoreState::AddWaiting(const Request& request, ForecastQueue& queue) const {
  std::uint64_t own = 0, outputs = 0;
  for (const TableIndex index : requests.Indices()) {
    const Request& other = requests[index];
    if (other.admitted || !GoesBefore(other, request)) continue;
    ++queue.requests;
    own += other.answer_class.tenant == request.answer_class.tenant;
    queue.tokens += other.waiting_tokens;
    outputs += other.waiting_rows - other.waiting_tokens;
    queue.mean.width += other.width();
    queue.mean.blocks += epoch->kv.BlocksFor(other.waiting_rows);
  }
  const std::uint64_t count = std::max<std::uint64_t>(queue.requests, 1);
  // What the prefix cache has had of prompts, it will have of these.
  const std::uint64_t looked_up = std::max<std::uint64_t>(counters.lookup_tokens, 1);
  queue.tokens -= queue.tokens * std::min(counters.cached_tokens, looked_up) / looked_up;
  queue.mean.width = std::max<std::uint64_t>(queue.mean.width / count, 1);
  queue.mean.blocks /= count;
  queue.mean.steps = outputs / count / queue.mean.width + queue.tokens / count / MaxStepTokens();
  if (!options.fair_share) return;
  const std::uint64_t fair_turns = std::min(queue.requests, (own + 1) * fair.size());
  queue.tokens = queue.tokens * fair_turns / count;
  queue.requests = fair_turns;
}

std::int64_t CoreState::PredictWaitNs(const ForecastEntry& entry) const {
  if (!epoch.has_value()) return 0;
  ForecastQueue queue{.own = entry.needs, .sequences = MaxRunning()};
  queue.mean.width = queue.mean.blocks = 0;
  queue.blocks = epoch->kv.pool().total();
  const StepShape now = RunningShape();
  const std::uint64_t most = MaxStepTokens();
  queue.rows = most - std::min(now.decode_rows, most - 1);
  AddRunning(queue);
  AddWaiting(entry.request, queue);
  const std::uint64_t steps = StepsUntilStart(queue);
  if (steps == 0) return 0;
  // As many decode as now, or as there will be places for, whichever comes later.
  const std::uint64_t decodes =
      (now.decode_rows + std::min<std::uint64_t>(MaxRunning(), now.decode_rows + queue.requests)) /
      2;
  StepShape step{.decode_rows = decodes};
  step.decode_context = now.decode_context / std::max<std::uint64_t>(now.decode_rows, 1) * decodes;
  const std::uint64_t tokens = queue.begun_tokens + queue.tokens;
  StepShape prompts{.prefill_rows = tokens};
  prompts.prefill_context = tokens * (tokens / (queue.requests + 1)) / 2;
  const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(steps, 1 << 24));
  return std::min(std::min(count, StepTimeModel::kMostNs) * forecast.steps().PredictNs(step),
                  1000 * StepTimeModel::kMostNs) +
         forecast.PrefillPartNs(prompts);
}

}  // namespace flotilla::scheduler
