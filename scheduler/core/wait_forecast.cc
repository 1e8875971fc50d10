// The part of CoreState that predicts when a request would start.
#include <algorithm>
#include <vector>

#include "scheduler/core/core_state.h"
#include "scheduler/core/policy.h"

namespace flotilla::scheduler {
namespace {

constexpr std::size_t kOutputParts = OutputForecast::kParts;

// What a sequence of `known` tokens takes that computes `tokens` of them and then makes `outputs`.
ForecastWork::Part PartOf(const CoreState& state, std::uint64_t tokens, std::uint64_t known,
                          std::uint64_t outputs) {
  return {.steps = tokens / state.MaxStepTokens() + outputs,
          .blocks = state.epoch->kv.BlocksFor(known + outputs / 2)};
}

// Adds the running sequences, less those of lower classes, which give way. Those that are in flight
// have made a step that is not counted yet.
void AddRunningWork(const CoreState& state, const Request& request, ForecastQueue& queue) {
  for (const TableIndex index : state.running) {
    const Sequence& sequence = state.sequences[index];
    const Request& other = state.RequestOf(sequence);
    if (!other.reserves() && request.order.group < other.order.group) continue;
    const std::uint64_t known = sequence.tokens.size();
    const std::uint64_t left =
        known - std::min<std::uint64_t>(
                    known, std::max(sequence.length.scheduled_max, sequence.fork.length));
    queue.begun_tokens += left;
    ForecastWork& work = queue.running.emplace_back();
    // The answer did not end with those parts of the forecast that it has passed.
    const auto& parts = sequence.forecast.parts;
    const std::size_t passed = std::min<std::size_t>(
        std::upper_bound(parts.begin(), parts.end(), state.OutputTokens(sequence)) - parts.begin(),
        kOutputParts - 1);
    for (std::size_t i = 0; i < kOutputParts; ++i) {
      const std::uint32_t outputs = parts[passed + i * (kOutputParts - passed) / kOutputParts];
      work.parts[i] = PartOf(state, left, known, state.RemainingOf(sequence, outputs));
    }
  }
}

// Requests of one tenant: those that wait and go first, and the sequences that run.
struct Backlog {
  std::uint64_t requests = 0, tokens = 0, outputs = 0;
  std::uint64_t running = 0;
  std::uint64_t committed = 0;  // the cost of what these still have to make

  void Add(const Request& request) {
    ++requests;
    tokens += request.waiting_tokens;
    outputs += request.waiting_rows - request.waiting_tokens;
  }
  std::uint64_t Cost() const {
    return tokens * FairShare::kPromptCost + outputs * FairShare::kOutputCost;
  }
};

struct Waiting {
  Backlog all, own;             // of all tenants; of the request's
  std::vector<Backlog> others;  // by tenant
  std::uint64_t width = 0;      // of all requests
  std::uint64_t shorter = 0;    // requests whose prompts are no longer than the request's
  DecayingHistogram<3, 24> outputs{1 << 20};
};

Waiting CountWaiting(const CoreState& state, const ForecastEntry& entry) {
  Waiting waiting;
  const auto of = [&](const Request& other) -> Backlog& {
    const bool own = !state.options.fair_share || other.reserves();
    if (own || other.tenant == entry.standing.tenant) return waiting.own;
    if (waiting.others.size() <= other.tenant) waiting.others.resize(other.tenant + 1);
    return waiting.others[other.tenant];
  };
  for (const TableIndex index : state.requests.Indices()) {
    const Request& other = state.requests[index];
    Backlog& backlog = of(other);
    if (other.admitted) {
      backlog.running += other.sequences.size();
      backlog.committed += (other.prompt_tokens - other.charged_tokens) * FairShare::kPromptCost;
      for (const TableIndex at : other.sequences) {
        backlog.committed += state.ExpectedOutputs(state.sequences[at]) * FairShare::kOutputCost;
      }
      continue;
    }
    if (&backlog == &waiting.own && !GoesBefore(other, entry.request)) continue;
    backlog.Add(other);
    waiting.all.Add(other);
    waiting.width += other.width();
    waiting.shorter += other.waiting_tokens <= entry.request.prompt_tokens;
    const Sequence& first = state.sequences[other.sequences.front()];
    for (const std::uint32_t outputs : first.forecast.parts) {
      waiting.outputs.Add(state.RemainingOf(first, outputs));
    }
  }
  return waiting;
}

// Another tenant goes first until its counter has reached the one that the request's tenant will
// then have, with what both make until then. One that has less waiting will have more: requests
// that come later take the places that its running ones leave.
void AddOtherTenants(const CoreState& state, const ForecastEntry& entry, const Waiting& waiting,
                     ForecastQueue& queue) {
  constexpr int kRounds = 8;  // each one comes nearer to the number of turns
  const auto counter = [](const FairShare::Standing& standing, std::uint64_t cost) {
    return static_cast<std::int64_t>(standing.served + cost * 1024 / standing.weight);
  };
  const Backlog& own = waiting.own;
  const std::int64_t mine = counter(entry.standing, own.committed + own.Cost());
  const std::uint64_t places = std::max<std::uint64_t>(state.running.size(), 1);
  for (int round = 0; round < kRounds; ++round) {
    std::uint64_t requests = own.requests, tokens = own.tokens;
    for (TableIndex index = 0; index < waiting.others.size(); ++index) {
      const Backlog& other = waiting.others[index];
      if (other.requests + other.running == 0) continue;
      const FairShare::Standing standing = state.fair.StandingOf(index);
      const std::int64_t ahead = mine - counter(standing, other.committed);
      if (ahead <= 0) continue;
      const Backlog& like = other.requests > 0 ? other : waiting.all;
      const std::uint64_t cost =
          std::max<std::uint64_t>(like.Cost() / like.requests * 1024 / standing.weight, 1);
      const std::uint64_t turns =
          std::min((static_cast<std::uint64_t>(ahead) + cost - 1) / cost,
                   other.requests + other.running * queue.requests / places);
      requests += turns;
      tokens += turns * (like.tokens / like.requests);
    }
    if (requests == queue.requests) return;
    queue.requests = requests;
    queue.tokens = tokens;
  }
}

// Some places go to later requests with shorter prompts. If this request is among the shortest of
// all, it overtakes others, too.
void AddOvertaking(const CoreState& state, const ForecastEntry& entry, std::uint64_t shorter,
                   ForecastQueue& queue) {
  constexpr std::uint64_t kAll = 65536;
  const std::uint64_t known = std::max<std::uint64_t>(state.prompts.count(), 1);
  const std::uint64_t longer =
      std::min<std::uint64_t>(state.prompts.CountAbove(entry.request.prompt_tokens), known);
  const std::uint64_t among_shortest = (known - longer) * kAll / known;
  std::uint64_t turns = queue.requests * kAll / (kAll - std::min(state.overtaking, kAll * 3 / 4));
  if (state.overtaking > among_shortest) {
    turns = std::min(turns, (2 * shorter + 1) * kAll / (state.overtaking - among_shortest) / 2);
  }
  queue.tokens = queue.tokens * turns / queue.requests;
  queue.requests = turns;
}

// Adds the waiting requests that go first.
void AddWaitingWork(const CoreState& state, const ForecastEntry& entry, ForecastQueue& queue) {
  const Waiting waiting = CountWaiting(state, entry);
  const std::uint64_t all = waiting.all.requests;
  if (all == 0) return;
  queue.mean.width = std::max<std::uint64_t>(waiting.width / all, 1);
  const std::uint64_t prompt = waiting.all.tokens / all / queue.mean.width;
  const auto outputs = waiting.outputs.PartMeans<kOutputParts>();
  for (std::size_t i = 0; i < kOutputParts; ++i) {
    queue.mean.parts[i] = PartOf(state, prompt, prompt, outputs[i]);
  }
  queue.requests = waiting.own.requests;
  queue.tokens = waiting.own.tokens;
  if (state.options.fair_share) AddOtherTenants(state, entry, waiting, queue);
  if (queue.requests == 0) return;
  AddOvertaking(state, entry, waiting.shorter, queue);
  // What the prefix cache has had of prompts, it will have of these.
  const std::uint64_t looked_up = std::max<std::uint64_t>(state.counters.lookup_tokens, 1);
  queue.tokens -= queue.tokens * std::min(state.counters.cached_tokens, looked_up) / looked_up;
}

// The rows of a step that prompts get beside these decodes, when there are `to_come`.
std::uint64_t PromptRows(const CoreState& state, const StepShape& decodes, std::uint64_t to_come) {
  const StepTimeModel& steps = state.forecast.steps();
  const std::uint64_t most = state.MaxStepTokens();
  const auto rows = static_cast<std::uint32_t>(most - std::min(decodes.decode_rows, most - 1));
  if (decodes.decode_rows == 0) return rows;
  const StepShape later{.decode_rows = to_come,
                        .decode_context = decodes.decode_context / decodes.decode_rows * to_come};
  const StepTimeModel::Target target = state.ChunkTarget(later);
  if (target.ns == 0) return rows;
  return std::max(steps.RowsWithin(target, decodes, 0, rows),
                  std::min(rows, CoreState::kLeastChunkRows));
}

}  // namespace

ForecastEntry CoreState::EntryOf(const TokenizedRequest& request) const {
  ForecastEntry entry;
  entry.request.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  entry.request.stop = request.stop;
  if (request.has_own_deadline()) entry.request.deadline_ns = request.deadline_ns;
  entry.request.priority = request.priority;
  entry.request.arrival = next_arrival;
  entry.request.protection = ProtectionAfter(0, options.max_preemptions);
  entry.request.answer_class =
      AnswerClass::Of(request.tenant, request.stop.max_tokens, !request.max_tokens_absent,
                      entry.request.prompt_tokens);
  entry.standing = fair.StandingOf(request.tenant);
  const std::uint32_t most = request.stop.max_tokens;
  const bool exact = request.beam.has_value() || request.stop.stop_tokens.empty();
  const OutputForecast outputs =
      exact ? OutputForecast::Exactly(most)
            : forecast.lengths().Predict(entry.request.answer_class, 0, most);
  StepShape beside = RunningShape();
  beside.AddDecode(request.prompt.size() + outputs.mean);
  entry.run_ns = forecast.PrefillNs(0, request.prompt.size(), MaxStepTokens()) +
                 static_cast<std::int64_t>(outputs.mean) * forecast.DecodeStepNs(beside);
  entry.request.order = policy->Key(entry.request, entry.run_ns);
  entry.needs.width = request.beam ? request.beam->beams : request.sequences;
  if (!epoch.has_value()) return entry;
  for (std::size_t i = 0; i < kOutputParts; ++i) {
    entry.needs.parts[i] =
        PartOf(*this, request.prompt.size(), request.prompt.size(), outputs.parts[i]);
  }
  return entry;
}

// A plan without prompts shows that those who wait are not in want of rows; if there is a place for
// the head of the queue, it is in want of blocks.
void CoreState::LearnUsableBlocks() {
  const std::optional<TableIndex> head = waiting.head();
  if (!head.has_value() || running.empty() || deadlines > 0 || !quarantine.requests.empty() ||
      reserved_sequences + requests[*head].width() > MaxRunning() ||
      epoch->in_flight.back().shape.prefill_rows > 0 || forecast.steps().NeedsDecodesAlone()) {
    return;
  }
  epoch->usable_blocks += epoch->kv.pool().used() - epoch->usable_blocks / 64;
}

std::int64_t CoreState::PredictWaitNs(const ForecastEntry& entry) const {
  if (!epoch.has_value()) return 0;
  ForecastQueue queue{.own = entry.needs, .sequences = MaxRunning()};
  queue.blocks = std::max<std::uint64_t>(epoch->usable_blocks / 64, 1);
  const StepShape now = RunningShape();
  AddRunningWork(*this, entry.request, queue);
  AddWaitingWork(*this, entry, queue);
  queue.rows = PromptRows(*this, now,
                          std::min<std::uint64_t>(MaxRunning(), now.decode_rows + queue.requests));
  const ForecastWait wait = WaitUntilStart(queue);
  if (wait.steps == 0) return 0;
  StepShape step{.decode_rows = wait.decodes};
  step.decode_context =
      now.decode_context / std::max<std::uint64_t>(now.decode_rows, 1) * wait.decodes;
  const std::uint64_t tokens = queue.begun_tokens + queue.tokens;
  StepShape prompts{.prefill_rows = tokens};
  prompts.prefill_context = tokens * (tokens / (queue.requests + 1)) / 2;
  const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(wait.steps, 1 << 24));
  return std::min(std::min(count, StepTimeModel::kMostNs) * forecast.steps().PredictNs(step),
                  1000 * StepTimeModel::kMostNs) +
         forecast.PrefillPartNs(prompts);
}

}  // namespace flotilla::scheduler
