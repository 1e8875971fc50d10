// The part of CoreState that asks the forecast: how long requests take, and when they start.
#include <algorithm>
#include <bit>
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
  if (request.beam == nullptr) {
    forecast.lengths().Report(request.answer_class, std::exchange(sequence.reported, made), made);
  }
  sequence.forecast = request.beam != nullptr
                          ? OutputForecast::Exactly(most)
                          : forecast.lengths().Predict(request.answer_class, made, most);
  if (request.has_exact_outputs()) sequence.forecast.parts.fill(most);
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

std::uint64_t CoreState::MedianOutputs(const Sequence& sequence) const {
  // The longest of more sequences is a longer one.
  const std::size_t part =
      OutputForecast::kParts / 2 - 1 + std::bit_width(RequestOf(sequence).width());
  const std::uint32_t median = sequence.forecast.parts[std::min(part, OutputForecast::kParts - 1)];
  return std::min(RemainingOf(sequence, median), ExpectedOutputs(sequence));
}

std::uint64_t CoreState::ExpectedOutputsOf(TableIndex index) const {
  const Request& request = requests[index];
  if (request.beam != nullptr) return std::uint64_t{request.width()} * request.stop.max_tokens;
  std::uint64_t outputs = 0;
  for (const TableIndex at : request.sequences) outputs += ExpectedOutputs(sequences[at]);
  return outputs;
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

StepTimeModel::Target CoreState::ChunkTarget(const StepShape& decodes) const {
  const StepTimeModel& steps = forecast.steps();
  if (const std::int64_t ns = options.itl_target_ns; ns > 0) {
    return {.ns = ns, .strict = true};
  }
  if (steps.steps() == 0) return {};
  // A step that the machine makes longer makes those beside it longer, too, so this one is not
  // strict.
  return {.ns = steps.PredictNs(decodes) / 1000 * options.itl_permille};
}

StepShape CoreState::RunningShape() const {
  StepShape shape;
  for (const TableIndex index : running) shape.AddDecode(sequences[index].tokens.size());
  return shape;
}

std::int64_t CoreState::PredictNs(const Request& request, std::uint64_t cached_tokens,
                                  bool median) const {
  StepShape beside;
  std::uint64_t tokens = 0, longest = 0;
  for (const TableIndex at : request.sequences) {
    const Sequence& sequence = sequences[at];
    tokens += sequence.tokens.size() - sequence.fork.length;
    longest = std::max(longest, median ? MedianOutputs(sequence) : ExpectedOutputs(sequence));
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

// The least time of `steps` steps of one decode of length `length` beside others, which end one
// after another.
std::int64_t CoreState::DecodesNs(std::uint64_t steps, std::uint64_t length,
                                  const Decodes& others) const {
  StepShape shape;
  shape.AddDecode(length);
  for (const auto& [left, other] : others) shape.AddDecode(other);
  std::uint64_t done = 0;
  std::int64_t ns = 0;
  const auto run_until = [&](std::uint64_t step) {
    const auto more = static_cast<std::int64_t>(std::max(std::min(step, steps), done) - done);
    ns = std::min(ns + more * forecast.steps().SureNs(shape), StepTimeModel::kMostNs);
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
  StepShape last;
  const std::uint64_t last_rows = std::min(tokens, rows);
  last.AddChunk(cached_tokens + tokens - last_rows, last_rows);
  return forecast.steps().QuickestNs(std::min(ns, StepTimeModel::kMostNs), last);
}

bool CoreState::SurelyLate(const Request& request) {
  if (!request.deadline_ns.has_value()) return false;
  if (now_ns + QuickestNs(request, 0) <= *request.deadline_ns) return false;
  return request.admitted || now_ns + QuickestNs(request, Cached(request)) > *request.deadline_ns;
}

bool CoreState::ExpectedLate(const Request& request) {
  if (!request.deadline_ns.has_value() || MayTry(request)) return false;
  const std::int64_t begun_ns = forecast.PrefillPartNs(BegunPrompts(*this));
  const auto is_late = [&](std::uint32_t cached) {
    const std::int64_t ns = begun_ns + PredictNs(request, cached, /*median=*/true);
    return now_ns + ns + ns / kForecastMargin > *request.deadline_ns;
  };
  return is_late(0) && is_late(Cached(request));
}

bool CoreState::HasUnknownLength(const Request& request) const {
  return !request.has_exact_outputs() && !forecast.lengths().Knows(request.answer_class);
}

bool CoreState::MayTry(const Request& request) const {
  constexpr std::size_t kTries = 32;
  if (!HasUnknownLength(request)) return false;
  std::size_t tried = 0;
  for (const TableIndex index : running) tried += RequestOf(sequences[index]).tried;
  return tried < kTries;
}

std::uint32_t CoreState::Cached(const Request& request) {
  return epoch->kv.PositionsOf(epoch->kv.FindPrefix(sequences[request.sequences.front()], request));
}

bool CoreState::LeavesTime(const Request& request) const {
  if (deadlines == 0 || !request.deadline_ns.has_value()) return true;
  const StepShape before = RunningShape();
  StepShape after = before;
  for (const TableIndex at : request.sequences) after.AddDecode(sequences[at].tokens.size());
  const auto careful = [this](const StepShape& shape) {
    return forecast.DecodeStepNs(shape) * (kForecastMargin + 1) / kForecastMargin;
  };
  const bool unknown = HasUnknownLength(request);
  const std::int64_t step = careful(before), longer = careful(after);
  std::size_t late = 0, made_late = 0, all = 0;
  for (const TableIndex index : running) {
    const Sequence& sequence = sequences[index];
    const Request& other = RequestOf(sequence);
    if (!other.deadline_ns.has_value()) continue;
    if (unknown && other.tried) continue;
    const auto steps = static_cast<std::int64_t>(MedianOutputs(sequence));
    ++all;
    const bool is_late = now_ns + steps * step > *other.deadline_ns;
    late += is_late;
    made_late += !is_late && now_ns + steps * longer > *other.deadline_ns;
  }
  // Some are late whatever happens. When most are, the batch is too large.
  constexpr std::size_t kSome = 4;
  return made_late <= request.sequences.size() && (late <= kSome || 2 * late <= all);
}

}  // namespace flotilla::scheduler
