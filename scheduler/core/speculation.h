// Speculation: chooses how many tokens ahead a decode drafts, so that drafting pays.
//
// Two measurements decide. StepCosts knows how long a step takes by its rows. An extra
// row costs little while the step is bound by reading weights, and its full share once
// the step is bound by arithmetic. So draft tokens that pay for one sequence alone may
// not pay in a batch. DraftAcceptance knows how often a sequence's draft tokens are right.
// ChooseDepth takes the depth at which the step gives the most tokens per nanosecond.
// Everything is in integers, because plans are a function of events. A draft token never
// changes an answer, so all of this affects time only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/types/plan.h"

namespace flotilla::scheduler {

// The time of a step that only decodes, by its rows. It starts from the executor's
// description and follows the measurements. A measurement at one number of rows also
// moves the estimates for the others, because usually all of them have become slower or
// faster: contexts have grown, or the machine does other work.
class StepCosts {
 public:
  StepCosts() : StepCosts(0, 0) {}
  StepCosts(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step);

  // Moves the estimates towards the measured step, if the step only decoded.
  void Observe(const StepTimings& step);

  // The nanoseconds of a step of `rows` rows. Never less than those of a smaller step.
  std::int64_t Ns(std::uint32_t rows) const;
  // Whether no step of about `rows` rows was seen recently. At first, recently means a few
  // steps; with more measurements it means up to kLongestUnseen steps. The gain of draft tokens
  // is measured against steps without them. So when this is true for the number of
  // sequences that decode, a step without draft tokens is due.
  bool Stale(std::uint32_t rows) const;
  static constexpr std::uint64_t kLongestUnseen = 128;

 private:
  // The time for a number of rows between two of these is interpolated.
  static constexpr std::array<std::uint32_t, 14> kRows = {1,  2,  3,  4,  6,  8,   12,
                                                          16, 24, 32, 48, 64, 128, 256};
  static constexpr std::uint32_t kMostRows = kRows.back();
  // The place of the last entry of kRows that is not above `rows`. It is never the last
  // entry of kRows.
  static std::size_t Below(std::uint32_t rows);
  std::int64_t Interpolate(std::uint32_t rows) const;
  void Tabulate();

  struct Point {
    std::int64_t ns = 0;
    std::uint64_t seen = 0;  // measurements
    std::uint64_t last = 0;  // the step of the last measurement
  };
  std::array<Point, kRows.size()> points_{};
  std::uint64_t steps_ = 0;                       // steps observed
  std::array<std::int64_t, kMostRows + 1> ns_{};  // by rows; does not decrease with rows
};

// How often the draft tokens of one sequence are right.
class DraftAcceptance {
 public:
  // Chances are in units of 1 / kSure.
  static constexpr std::uint32_t kSure = 1024;
  // While its depth is 0, a sequence drafts again (a trial) after kFirstRest tokens. The
  // wait doubles with each trial that fails, up to kLongestRest tokens.
  static constexpr std::uint32_t kFirstRest = 32;
  static constexpr std::uint32_t kLongestRest = 512;
  // The number of draft tokens of such a trial.
  static constexpr std::uint32_t kTrialDepth = 2;

  // The chance that a draft token is right if the one before it was.
  std::uint32_t chance() const { return chance_; }
  // Whether the sequence has rested long enough for a trial.
  bool trial() const { return rested_ >= rest_; }
  // Whether it has rested for kLongestRest. Then a trial is due even if perfect draft
  // tokens do not seem to pay, because costs are only learned from steps that ran.
  bool overdue() const { return rested_ >= kLongestRest; }

  // Records a decode that was allowed `depth` draft tokens. It made `drafted` of them,
  // `accepted` of these were right, and it gave `tokens` tokens in all.
  void OnResult(std::uint32_t depth, std::uint32_t drafted, std::uint32_t accepted,
                std::uint32_t tokens);

 private:
  // The first assumption is that every other draft token is right.
  std::uint32_t chance_ = kSure / 2;
  std::uint32_t rested_ = 0;  // tokens since the last draft token, while the depth was 0
  std::uint32_t rest_ = kFirstRest;
};

// A step as planned so far, without the draft tokens of the sequence in question.
struct SpeculationLoad {
  std::uint32_t rows = 0;       // decodes, and draft tokens of other sequences
  std::uint64_t tokens = 0;     // that they are expected to give, in 1 / DraftAcceptance::kSure
  std::int64_t prefill_ns = 0;  // the time of the step's prefill
};

// The tokens that `depth` draft tokens are expected to add to the one that a decode
// always gives, in units of 1 / DraftAcceptance::kSure.
std::uint64_t ExpectedTokens(std::uint32_t chance, std::uint32_t depth);

// The depth up to `most` at which the step gives the most tokens per time. 0 unless the
// gain exceeds the noise of the measurements.
std::uint32_t ChooseDepth(const DraftAcceptance& acceptance, const SpeculationLoad& load,
                          const StepCosts& costs, std::uint32_t most);

}  // namespace flotilla::scheduler
