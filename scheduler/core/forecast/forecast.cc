#include "scheduler/core/forecast/forecast.h"

#include <algorithm>
#include <cstddef>

namespace flotilla::scheduler {
namespace {

constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 32;

constexpr std::uint64_t kParts = OutputForecast::kParts;

// Places for requests that start in order, all but the last of which are alike. They are counted in
// parts of a sequence and of a block.
class Places {
 public:
  explicit Places(const ForecastQueue& queue)
      : mean_(queue.mean),
        sequences_(static_cast<std::int64_t>(queue.sequences * kParts)),
        blocks_(static_cast<std::int64_t>(queue.blocks * kParts)) {
    ends_.reserve(queue.running.size() * kParts);
    for (const ForecastWork& work : queue.running) {
      for (const ForecastWork::Part& part : work.parts) {
        Hold(work.width, part.blocks);
        ends_.push_back({.step = part.steps, .width = work.width, .blocks = part.blocks});
      }
    }
    std::sort(ends_.begin(), ends_.end(),
              [](const End& a, const End& b) { return a.step < b.step; });
  }
  // Finds the first step from `least` on in which such a request has its place.
  void Find(const ForecastWork& work, std::uint64_t least) {
    std::uint64_t blocks = 0;
    for (const ForecastWork::Part& part : work.parts) blocks += part.blocks * work.width;
    GoTo(least);
    const auto fits = [&] {
      return sequences_ >= static_cast<std::int64_t>(work.width * kParts) &&
             blocks_ >= static_cast<std::int64_t>(blocks);
    };
    for (std::size_t next = NextEnd(); next <= kParts; next = NextEnd()) {
      const End end = EndAt(next);
      if (end.step > step_ && fits()) return;
      ++next_[next];
      GoTo(end.step);
      Hold(-static_cast<std::int64_t>(end.width), -static_cast<std::int64_t>(end.blocks));
    }
  }
  // Starts the mean request in the step that was found.
  void Start() {
    for (const ForecastWork::Part& part : mean_.parts) {
      Hold(static_cast<std::int64_t>(mean_.width),
           static_cast<std::int64_t>(part.blocks * mean_.width));
    }
    starts_.push_back(step_);
  }
  void GoTo(std::uint64_t step) {
    if (step <= step_) return;
    sequence_steps_ += held_ * (step - step_);
    step_ = step;
  }
  std::uint64_t step() const { return step_; }
  // The sequences held, in the mean of all steps.
  std::uint64_t Held() const { return step_ == 0 ? 0 : sequence_steps_ / step_ / kParts; }

 private:
  struct End {
    std::uint64_t step, width, blocks;
  };

  void Hold(std::int64_t width, std::int64_t blocks) {
    sequences_ -= width;
    blocks_ -= blocks;
    held_ += static_cast<std::uint64_t>(width);
  }
  // The ends of each part of the requests that started come in the order of their starts, so the
  // next end is one of kParts, or the first of `ends_`, which are those of the running ones.
  End EndAt(std::size_t index) const {
    if (index == kParts) return ends_[next_[kParts]];
    const ForecastWork::Part& part = mean_.parts[index];
    return {.step = starts_[next_[index]] + part.steps,
            .width = mean_.width,
            .blocks = part.blocks * mean_.width};
  }
  // More than kParts: nothing is held.
  std::size_t NextEnd() const {
    std::size_t first = next_[kParts] < ends_.size() ? kParts : kParts + 1;
    for (std::size_t i = 0; i < kParts; ++i) {
      if (next_[i] == starts_.size()) continue;
      if (first > kParts || EndAt(i).step < EndAt(first).step) first = i;
    }
    return first;
  }

  const ForecastWork& mean_;
  std::vector<End> ends_;              // of running sequences, ascending
  std::vector<std::uint64_t> starts_;  // of requests that waited
  std::array<std::size_t, kParts + 1> next_{};
  std::int64_t sequences_, blocks_;  // free; below 0 if more will be needed than there are
  std::uint64_t held_ = 0;
  std::uint64_t step_ = 0, sequence_steps_ = 0;
};

}  // namespace

ForecastWait WaitUntilStart(const ForecastQueue& queue) {
  Places places(queue);
  std::uint64_t steps = 0, block_steps = 0;  // of the parts of the mean request
  for (const ForecastWork::Part& part : queue.mean.parts) {
    steps += part.steps;
    block_steps += part.steps * part.blocks;
  }
  const std::uint64_t blocks = block_steps / std::max<std::uint64_t>(steps, 1) * queue.mean.width;
  // With many waiting requests, all places are taken and given back in rounds.
  const std::uint64_t round =
      std::max<std::uint64_t>(std::min(queue.sequences / queue.mean.width,
                                       queue.blocks / std::max<std::uint64_t>(blocks, 1)),
                              1);
  const std::uint64_t rounds = queue.requests > 3 * round ? queue.requests / round - 2 : 0;
  const std::uint64_t single = queue.requests - rounds * round;
  std::uint64_t tokens = queue.begun_tokens;
  const std::uint64_t each = queue.tokens / std::max<std::uint64_t>(queue.requests, 1);
  for (std::uint64_t i = 0; i < single; ++i) {
    places.Find(queue.mean, tokens / queue.rows);
    places.Start();
    tokens += each;
  }
  const std::uint64_t all_rounds = rounds * steps / kParts;
  const std::uint64_t all_tokens = (queue.begun_tokens + queue.tokens) / queue.rows;
  places.Find(queue.own, all_tokens - std::min(all_rounds, all_tokens));
  places.GoTo(places.step() + all_rounds);
  return {.steps = places.step(), .decodes = places.Held()};
}

void Forecast::Begin(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step) {
  steps_ = StepTimeModel(prefill_ns_per_token, decode_ns_per_step);
  prefill_ns_ = 0;
}

void Forecast::PassOver(const StepShape& planned) {
  if (planned.prefill_rows == 0) steps_.HadDecodesAlone();
}

void Forecast::Observe(const StepShape& planned, const StepTimings& timings) {
  PassOver(planned);
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
