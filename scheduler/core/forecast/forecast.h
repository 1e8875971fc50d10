// Forecast: what the scheduler expects of the time of steps and of the length of answers. It
// alone feeds deadlines, orders by remaining work, chunks, waits and refusals, the choice between
// swapping and recomputing, and the limit of a stuck step.
//
// CoreState owns it. Integers only; no clock.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/types/plan.h"
#include "scheduler/core/forecast/output_lengths.h"
#include "scheduler/core/forecast/step_time.h"

namespace flotilla::scheduler {

// A request that holds sequences and blocks, or will hold them, until each of its sequences ends.
// When that is is not known; each part is as likely.
struct ForecastWork {
  struct Part {
    std::uint64_t steps = 0;   // until a sequence ends, from now or from its start
    std::uint64_t blocks = 0;  // that it holds until then, in the mean
  };
  std::uint64_t width = 1;  // sequences
  std::array<Part, OutputForecast::kParts> parts{};
};

// What stands between a request and its start.
struct ForecastQueue {
  std::vector<ForecastWork> running;
  std::uint64_t begun_tokens = 0;  // of prompts that have begun, still to be computed
  // The requests that go first, in all, and the mean one of them.
  std::uint64_t requests = 0;
  std::uint64_t tokens = 0;  // that they have to compute before they decode
  ForecastWork mean;
  ForecastWork own;  // the request
  // What may be held at once: sequences, blocks, and rows of a step. At least 1.
  std::uint64_t sequences = 1, blocks = 1, rows = 1;
};

struct ForecastWait {
  // Those until sequences and blocks are free, or those that the prompts before it fill, if these
  // are more.
  std::uint64_t steps = 0;
  std::uint64_t decodes = 0;  // of one of these steps, in the mean
};

// What passes before the request starts. Places are given in order, and a sequence gives its place
// back part by part, as likely as it ends. O(n log n) for n = running sequences plus 3 *
// `sequences`, however many wait.
ForecastWait WaitUntilStart(const ForecastQueue& queue);

class Forecast {
 public:
  // The prior of answers' lengths is `prior_permille` of max_tokens.
  explicit Forecast(std::uint32_t prior_permille) : lengths_(prior_permille) {}

  // A worker group of this description begins.
  void Begin(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step);
  // Learns from the result of a step that was planned with `planned`. The rows that really ran
  // count: draft tokens may be fewer than planned, and sequences may have ended before.
  void Observe(const StepShape& planned, const StepTimings& timings);
  // The same of a step whose time says nothing.
  void PassOver(const StepShape& planned);

  const StepTimeModel& steps() const { return steps_; }
  const OutputLengths& lengths() const { return lengths_; }
  OutputLengths& lengths() { return lengths_; }

  // The time to compute `tokens` of a prompt from position `begin`, `step_rows` at a time.
  std::int64_t PrefillNs(std::uint64_t begin, std::uint64_t tokens, std::uint64_t step_rows) const;
  // What the prefill of a step adds to its time.
  std::int64_t PrefillPartNs(const StepShape& shape) const;
  // The time of a step with these decodes, and with as much prefill as recent steps had.
  std::int64_t DecodeStepNs(const StepShape& decodes) const;

  // `ns`, bounded to a useful time after which a refused client tries again.
  static std::int64_t RetryAfterMs(std::int64_t ns);

 private:
  StepTimeModel steps_;
  OutputLengths lengths_;
  std::int64_t prefill_ns_ = 0;  // in recent steps that decode
};

}  // namespace flotilla::scheduler
