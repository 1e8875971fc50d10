// StepTimeModel: how long a step takes, as a function of its shape. It is fitted to each step that
// the worker group reports, in integers.
//
//   step = fixed + a * prefill rows + b * prefill context
//                + c * decode rows  + d * decode context
//
// These are the terms of the simulator's own fit (simulator/step_fit.h). The fit is by least
// squares of errors relative to the predicted time, so short steps count as much as long ones.
// Each step improves the coefficients by a few sweeps of coordinate descent on the normal
// equations, which keeps them at zero or more (Franc et al., "Sequential coordinate-wise
// algorithm for the non-negative least squares problem", 2005). Old steps are forgotten. Steps
// with prefill and steps without have equations of their own, so that a long time with only one
// kind does not make the model forget the other kind.
//
// The model starts from the executor's description, which counts as a few steps. A value with
// one owner; no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "scheduler/core/forecast/decaying_histogram.h"

namespace flotilla::scheduler {

// What the time of a step depends on.
struct StepShape {
  std::uint64_t prefill_rows = 0;
  std::uint64_t decode_rows = 0;
  // Sum over rows of the positions that each attends to, itself included.
  std::uint64_t prefill_context = 0;
  std::uint64_t decode_context = 0;

  // Adds a chunk that begins at position `begin`.
  void AddChunk(std::uint64_t begin, std::uint64_t rows) {
    prefill_rows += rows;
    prefill_context += rows * begin + rows * (rows + 1) / 2;
  }
  // Adds a decode of `rows` rows, the first of which is at position `begin`.
  void AddDecode(std::uint64_t begin, std::uint64_t rows = 1) {
    decode_rows += rows;
    decode_context += rows * begin + rows * (rows + 1) / 2;
  }
};

class StepTimeModel {
 public:
  // Until so many steps were observed, the description is corrected sooner.
  static constexpr std::uint64_t kWarmUp = 100;

  StepTimeModel() : StepTimeModel(0, 0) {}
  StepTimeModel(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step);

  // Learns from a step that took `ns`. Ignored: a step without rows or without time.
  void Observe(const StepShape& shape, std::int64_t ns);

  // The expected time. At least 1, at most kMostNs.
  std::int64_t PredictNs(const StepShape& shape) const;
  // The same, less what is not known of steps with fewer rows than all since the times have
  // changed: what they seem to take whatever their rows may be of the rows. And decodes count with
  // the most context that was seen, since what context costs may be a guess.
  std::int64_t SureNs(const StepShape& shape) const;
  // The time that `permille` of the steps of such a shape do not exceed.
  std::int64_t QuantileNs(const StepShape& shape, std::uint32_t permille) const;
  // `ns`, which was predicted for steps with chunks up to `largest`, less all that the model may be
  // wrong: nearly every step takes longer. 0 for the first steps, and the first ones after a change
  // of all times; a quarter for chunks with far more rows or context than all that were seen.
  std::int64_t QuickestNs(std::int64_t ns, const StepShape& largest) const;
  // A time that a step keeps to if it is expected to. Where the target is `strict`, the step also
  // exceeds it by a tenth in one of twenty cases at most.
  struct Target {
    std::int64_t ns = 0;  // 0: there is none
    bool strict = false;
  };
  // The most rows up to `most` of a chunk from position `begin` with which a step that already has
  // `shape` keeps to the target.
  std::uint32_t RowsWithin(const Target& target, StepShape shape, std::uint64_t begin,
                           std::uint32_t most) const;

  // The number of steps that were observed.
  std::uint64_t steps() const { return steps_; }
  // Whether all recent steps had prefill. What a step takes without is not known any more then: if
  // decodes are taken to be too short and prefill too long, such steps agree with the model.
  bool NeedsDecodesAlone() const { return since_decodes_alone_ >= kPrefillInARow; }
  // A step had no prefill. Even if its time could not be observed, the next ones may have some.
  void HadDecodesAlone() { since_decodes_alone_ = 0; }

  // A measurement comes from outside. It counts as 100 s at most.
  static constexpr std::int64_t kMostNs = 100'000'000'000;

 private:
  static constexpr std::uint64_t kPrefillInARow = 64;
  __extension__ using Wide = __int128;
  static constexpr std::size_t kTerms = 5;
  using Vector = std::array<std::int64_t, kTerms>;
  // Normal equations. The features of a step are in units of 2^-42 of its predicted time.
  struct Equations {
    std::array<std::array<Wide, kTerms>, kTerms> a{};
    std::array<Wide, kTerms> b{};
  };
  using Ratios = DecayingHistogram<4, 24>;  // of measured to predicted time, in units of 1 / kOne

  static Vector Features(const StepShape& shape, std::int64_t predicted_ns);
  void Accumulate(Equations& equations, const StepShape& shape, std::int64_t predicted_ns,
                  std::int64_t ns);
  void Improve();
  // Counts steps in a row that are far off on one side. After some, all times are taken to have
  // changed in proportion.
  void NoticeChange(std::int64_t ratio);
  void Rescale(std::int64_t ratio);
  void ForgetRatios();

  Vector terms_{};                        // in 2^-8 ns; of the contexts, for 4,096 positions
  std::array<Equations, 2> equations_{};  // of decodes alone; with prefill
  std::array<Ratios, 2> ratios_;          // the same
  std::uint64_t steps_ = 0;
  std::uint64_t most_prefill_rows_ = 0, most_prefill_context_ = 0;  // of a step
  std::uint64_t most_decode_context_ = 0;
  std::uint64_t since_decodes_alone_ = 0;  // steps with prefill in a row
  // Steps since all times have changed. The description counts as 16.
  std::uint64_t since_change_ = 16;
  std::uint64_t fewest_rows_ = ~0ull;  // of one of these steps
  std::int64_t side_ = 0;     // the last steps in a row that were too long (> 0) or too short
  std::int64_t nearest_ = 0;  // the ratio of the one of them that was least off
};

}  // namespace flotilla::scheduler
