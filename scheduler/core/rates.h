// Rates: a model of how long steps take. It is fitted to each step that the worker group
// reports, in integers.
//
//   step = base(decode rows) + prefill rows * prefill_ns_per_token
//
// base is a table by the power of two of the decode rows, so that it need not be a line
// (weights are read once per step, contexts grow). Each entry follows the steps that only
// decode. The model starts from the executor's description.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "common/types/plan.h"

namespace flotilla::scheduler {

class Rates {
 public:
  Rates() = default;
  Rates(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step)
      : prefill_ns_per_token_(Clamp(prefill_ns_per_token)),
        row_ns_(prefill_ns_per_token_),
        step_ns_(Clamp(decode_ns_per_step)),
        described_decode_ns_(Clamp(decode_ns_per_step)) {}

  std::int64_t prefill_ns_per_token() const { return prefill_ns_per_token_; }

  // Moves an eighth of the way to what the step shows. A step that only decodes shows the
  // base. In a mixed step, the time beyond the base shows the prefill rate.
  void Observe(const StepTimings& step) {
    const std::int64_t compute_ns = Clamp(step.compute_ns);
    if (step.rows == 0 || step.decode_rows > step.rows) return;
    row_ns_ += (compute_ns / step.rows - row_ns_) / 8;
    if (step.decode_rows > 0) step_ns_ += (compute_ns - step_ns_) / 32;
    const std::int64_t prefill_rows = step.rows - step.decode_rows;
    if (prefill_rows == 0) {
      std::int64_t& base = base_[Bucket(step.decode_rows)];
      base = base == 0 ? std::max<std::int64_t>(compute_ns, 1) : base + (compute_ns - base) / 8;
      return;
    }
    const std::int64_t per_token =
        std::max<std::int64_t>(compute_ns - BaseNs(step.decode_rows), 0) / prefill_rows;
    prefill_ns_per_token_ += (per_token - prefill_ns_per_token_) / 8;
  }

  // The time of a step that only decodes.
  std::int64_t BaseNs(std::uint32_t decode_rows) const {
    if (decode_rows == 0) return 0;
    const std::size_t bucket = Bucket(decode_rows);
    for (std::size_t i = bucket + 1; i-- > 0;) {  // the nearest bucket seen, lower ones first
      if (base_[i] > 0) return base_[i];
    }
    for (std::size_t i = bucket + 1; i < base_.size(); ++i) {
      if (base_[i] > 0) return base_[i];
    }
    return described_decode_ns_;
  }

  std::int64_t PredictStepNs(std::uint32_t prefill_rows, std::uint32_t decode_rows) const {
    return prefill_rows * prefill_ns_per_token_ + BaseNs(decode_rows);
  }

  // The prefill rows that fit beside `decode_rows` decodes in a step of `target_ns`.
  std::uint32_t PrefillRowsWithin(std::int64_t target_ns, std::uint32_t decode_rows) const {
    const std::int64_t left = target_ns - BaseNs(decode_rows);
    if (left <= 0) return 0;
    const std::int64_t rows = left / std::max<std::int64_t>(prefill_ns_per_token_, 1);
    return static_cast<std::uint32_t>(std::min<std::int64_t>(rows, 1 << 30));
  }

  // The time of one request beside `running` others: its prompt, then one step per output
  // token. The prompts of the others make steps longer than those that only decode.
  std::int64_t PredictRequestNs(std::uint64_t prefill_tokens, std::uint64_t outputs,
                                std::uint32_t running) const {
    const std::int64_t step_ns = running > 0 ? std::max(BaseNs(running + 1), step_ns_) : BaseNs(1);
    return Bounded(prefill_tokens) * prefill_ns_per_token_ + Bounded(outputs) * step_ns;
  }

  // The time that the group needs for `rows` rows in batches of the recent size.
  std::int64_t PredictRowsNs(std::uint64_t rows) const { return Bounded(rows) * row_ns_; }

  // The time after which a queue of `rows` rows is predicted to be computed, limited to the bounds
  // below.
  std::int64_t RetryAfterMs(std::uint64_t rows) const {
    return std::clamp<std::int64_t>(PredictRowsNs(rows) / 1'000'000, kMinRetryMs, kMaxRetryMs);
  }

 private:
  // A tenth of a second keeps refused clients from retrying in a tight loop. No prediction
  // is useful beyond a minute.
  static constexpr std::int64_t kMinRetryMs = 100;
  static constexpr std::int64_t kMaxRetryMs = 60'000;
  // Measurements come from outside. They are limited to 100 s per step or token and to
  // 2^26 tokens, so that products fit.
  static std::int64_t Clamp(std::int64_t ns) {
    return std::clamp<std::int64_t>(ns, 0, 100'000'000'000);
  }
  static std::int64_t Bounded(std::uint64_t tokens) {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(tokens, 1 << 26));
  }
  static std::size_t Bucket(std::uint32_t decode_rows) {
    return static_cast<std::size_t>(std::bit_width(std::min(decode_rows, 4095u)));
  }

  std::int64_t prefill_ns_per_token_ = 0;
  std::int64_t row_ns_ = 0;   // per row of any kind, in recent batches
  std::int64_t step_ns_ = 0;  // per step with at least one decode, recently
  std::int64_t described_decode_ns_ = 0;
  std::array<std::int64_t, 13> base_{};  // by Bucket; 0: never seen
};

}  // namespace flotilla::scheduler
