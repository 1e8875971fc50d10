// Rates: how fast the worker group is, in integers, as measured by its steps.
//
// Starts from the executor's description, follows the timings of results, and
// predicts the length of steps and of the wait behind a full queue.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/types/plan.h"

namespace flotilla {

class Rates {
 public:
  Rates() = default;
  Rates(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step)
      : prefill_ns_per_token_(Clamp(prefill_ns_per_token)),
        decode_ns_per_step_(Clamp(decode_ns_per_step)) {}

  std::int64_t prefill_ns_per_token() const { return prefill_ns_per_token_; }
  std::int64_t decode_ns_per_step() const { return decode_ns_per_step_; }

  // Moves an eighth of the way to what the step shows: pure decode steps show
  // the decode rate, the rest of mixed steps the prefill rate.
  void Observe(const StepTimings& step) {
    const std::int64_t compute_ns = Clamp(step.compute_ns);
    if (step.rows == 0 || step.decode_rows > step.rows) return;
    const std::int64_t prefill_rows = step.rows - step.decode_rows;
    if (prefill_rows == 0) {
      decode_ns_per_step_ += (compute_ns - decode_ns_per_step_) / 8;
      return;
    }
    const std::int64_t decode_ns = step.decode_rows > 0 ? decode_ns_per_step_ : 0;
    const std::int64_t per_token = std::max<std::int64_t>(compute_ns - decode_ns, 0) / prefill_rows;
    prefill_ns_per_token_ += (per_token - prefill_ns_per_token_) / 8;
  }

  std::int64_t PredictStepNs(std::uint32_t prefill_rows, std::uint32_t decode_rows) const {
    return prefill_rows * prefill_ns_per_token_ + (decode_rows > 0 ? decode_ns_per_step_ : 0);
  }

  // When a queue of so many prompt tokens will have moved on.
  std::int64_t RetryAfterMs(std::uint64_t queued_tokens) const {
    const auto tokens = static_cast<std::int64_t>(std::min<std::uint64_t>(queued_tokens, 1 << 30));
    const std::int64_t per_token_us = prefill_ns_per_token_ / 1000 + 1;
    return std::clamp<std::int64_t>(tokens * per_token_us / 1000, kMinRetryMs, kMaxRetryMs);
  }

 private:
  // A tenth of a second keeps refused clients from spinning; a minute is as far
  // as a guess is worth anything.
  static constexpr std::int64_t kMinRetryMs = 100;
  static constexpr std::int64_t kMaxRetryMs = 60'000;
  // Measurements come from outside: no more than 1000 s per step or token.
  static std::int64_t Clamp(std::int64_t ns) {
    return std::clamp<std::int64_t>(ns, 0, 1'000'000'000'000);
  }

  std::int64_t prefill_ns_per_token_ = 0;
  std::int64_t decode_ns_per_step_ = 0;
};

}  // namespace flotilla
