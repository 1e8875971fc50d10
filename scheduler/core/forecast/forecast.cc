#include "scheduler/core/forecast/forecast.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace flotilla::scheduler {
namespace {

constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 32;

// (step of the end, width, blocks)
using End = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

// Places for requests that start in order.
class Places {
 public:
  explicit Places(const ForecastQueue& queue)
      : sequences_(static_cast<std::int64_t>(queue.sequences)),
        blocks_(static_cast<std::int64_t>(queue.blocks)) {
    for (const ForecastWork& work : queue.running) Hold(work);
  }
  // Returns the first step in which such a request finds its place, and holds it.
  std::uint64_t Start(const ForecastWork& work, std::uint64_t least) {
    step_ = std::max(step_, least);
    const auto fits = [&] {
      return sequences_ >= static_cast<std::int64_t>(work.width) &&
             blocks_ >= static_cast<std::int64_t>(work.blocks);
    };
    while (!ends_.empty() && (std::get<0>(ends_.top()) <= step_ || !fits())) {
      const auto [end, width, blocks] = ends_.top();
      ends_.pop();
      step_ = std::max(step_, end);
      sequences_ += static_cast<std::int64_t>(width);
      blocks_ += static_cast<std::int64_t>(blocks);
    }
    Hold(work);
    return step_;
  }
  void Wait(std::uint64_t steps) { step_ += steps; }

 private:
  void Hold(const ForecastWork& work) {
    sequences_ -= static_cast<std::int64_t>(work.width);
    blocks_ -= static_cast<std::int64_t>(work.blocks);
    ends_.emplace(step_ + work.steps, work.width, work.blocks);
  }

  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::int64_t sequences_, blocks_;  // free; below 0 if more will be needed than there are
  std::uint64_t step_ = 0;
};

}  // namespace

std::uint64_t StepsUntilStart(const ForecastQueue& queue) {
  Places places(queue);
  // With many waiting requests, all places are taken and given back in rounds.
  const std::uint64_t round = std::max<std::uint64_t>(
      std::min(queue.sequences / std::max<std::uint64_t>(queue.mean.width, 1),
               queue.blocks / std::max<std::uint64_t>(queue.mean.blocks, 1)),
      1);
  const std::uint64_t rounds = queue.requests > 3 * round ? queue.requests / round - 2 : 0;
  const std::uint64_t single = queue.requests - rounds * round;
  std::uint64_t tokens = queue.begun_tokens;
  const std::uint64_t each = queue.tokens / std::max<std::uint64_t>(queue.requests, 1);
  for (std::uint64_t i = 0; i < single; ++i) {
    places.Start(queue.mean, tokens / queue.rows);
    tokens += each;
  }
  places.Wait(rounds * queue.mean.steps);
  return places.Start(queue.own, (queue.begun_tokens + queue.tokens) / queue.rows);
}

void Forecast::Begin(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step) {
  steps_ = StepTimeModel(prefill_ns_per_token, decode_ns_per_step);
  prefill_ns_ = 0;
}

void Forecast::Observe(const StepShape& planned, const StepTimings& timings) {
  if (timings.decode_rows > timings.rows) return;
  StepShape shape = planned;
  shape.decode_rows = timings.decode_rows;
  if (planned.decode_rows > 0) {
    shape.decode_context = planned.decode_context / planned.decode_rows * shape.decode_rows;
  }
  steps_.Observe(shape, timings.compute_ns);
  if (shape.decode_rows == 0) return;
  prefill_ns_ += (PrefillPartNs(shape) - prefill_ns_) / 16;
}

std::int64_t Forecast::PrefillPartNs(const StepShape& shape) const {
  StepShape decodes = shape;
  decodes.prefill_rows = decodes.prefill_context = 0;
  return steps_.PredictNs(shape) - steps_.PredictNs(decodes);
}

std::int64_t Forecast::PrefillNs(std::uint64_t begin, std::uint64_t tokens,
                                 std::uint64_t step_rows) const {
  if (tokens == 0) return 0;
  StepShape all;
  all.AddChunk(std::min(begin, kMostTokens), std::min(tokens, kMostTokens));
  const std::int64_t fixed = steps_.PredictNs({});
  const auto more = static_cast<std::int64_t>((std::min(tokens, kMostTokens) - 1) /
                                              std::max<std::uint64_t>(step_rows, 1));
  return std::min(steps_.PredictNs(all) + std::min(more, StepTimeModel::kMostNs / fixed) * fixed,
                  StepTimeModel::kMostNs);
}

std::int64_t Forecast::DecodeStepNs(const StepShape& decodes) const {
  return steps_.PredictNs(decodes) + (decodes.decode_rows > 1 ? prefill_ns_ : 0);
}

std::int64_t Forecast::RetryAfterMs(std::int64_t ns) {
  // A tenth of a second keeps refused clients from retrying in a tight loop. No prediction
  // is useful beyond a minute.
  constexpr std::int64_t kMinRetryMs = 100, kMaxRetryMs = 60'000;
  return std::clamp<std::int64_t>(ns / 1'000'000, kMinRetryMs, kMaxRetryMs);
}

}  // namespace flotilla::scheduler
