// Speculation: how many tokens ahead a decode may draft, so that it pays.
//
// Two measurements decide. StepCosts knows what a step takes by its rows: an
// extra row costs little while weights are what is read, and its full share once
// arithmetic is the bound, so draft tokens that pay alone may not pay in a batch.
// DraftAcceptance knows how often a sequence's draft tokens are right. ChooseDepth takes the
// depth at which the step gives the most tokens per nanosecond. Integers only:
// plans are a function of events. A draft token never changes an answer, so all of this
// is about time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/types/plan.h"

namespace flotilla {

// The time of a step that only decodes, by its rows. Starts from the executor's
// description and follows what is measured. What one number of rows shows moves
// the others too, since mostly all of them have become slower or faster: contexts
// have grown, or the machine does something else.
class StepCosts {
 public:
  StepCosts() : StepCosts(0, 0) {}
  StepCosts(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step);

  // Moves towards what the step shows, if it only decoded.
  void Observe(const StepTimings& step);

  // Nanoseconds of a step of so many rows; never less than of fewer rows.
  std::int64_t Ns(std::uint32_t rows) const;
  // No step of about so many rows was seen for some steps (at first; for up to
  // kLongestUnseen later). What draft tokens gain is measured against steps without
  // them: one of as many rows as sequences decode is due.
  bool Stale(std::uint32_t rows) const;
  static constexpr std::uint64_t kLongestUnseen = 128;

 private:
  // Rows between two of these are interpolated.
  static constexpr std::array<std::uint32_t, 14> kRows = {1,  2,  3,  4,  6,  8,   12,
                                                          16, 24, 32, 48, 64, 128, 256};
  static constexpr std::uint32_t kMostRows = kRows.back();
  // The place of the last entry of kRows not above `rows`, the last one excluded.
  static std::size_t Below(std::uint32_t rows);
  std::int64_t Interpolate(std::uint32_t rows) const;
  void Tabulate();

  struct Point {
    std::int64_t ns = 0;
    std::uint64_t seen = 0;  // times
    std::uint64_t last = 0;  // step at which it was
  };
  std::array<Point, kRows.size()> points_{};
  std::uint64_t steps_ = 0;                       // observed
  std::array<std::int64_t, kMostRows + 1> ns_{};  // by rows, never falling
};

// How often the draft tokens of one sequence are right.
class DraftAcceptance {
 public:
  // Chances are in units of 1 / kSure.
  static constexpr std::uint32_t kSure = 1024;
  // While its depth is 0 a sequence tries again after so many tokens, and after
  // twice as many each time that it was in vain, up to the second number.
  static constexpr std::uint32_t kFirstRest = 32;
  static constexpr std::uint32_t kLongestRest = 512;
  // Draft tokens of such a trial.
  static constexpr std::uint32_t kTrialDepth = 2;

  // The chance that a draft token is right if the one before it was.
  std::uint32_t chance() const { return chance_; }
  // It has rested long enough.
  bool trial() const { return rested_ >= rest_; }
  // It has rested the longest time: a trial is due even if perfect draft tokens do not
  // seem to pay, since costs are only learned from steps that were made.
  bool overdue() const { return rested_ >= kLongestRest; }

  // A decode that was allowed `depth` draft tokens made `drafted`, of which `accepted`
  // were right, and brought `tokens` tokens.
  void OnResult(std::uint32_t depth, std::uint32_t drafted, std::uint32_t accepted,
                std::uint32_t tokens);

 private:
  // At first draft tokens are believed to be right every other time.
  std::uint32_t chance_ = kSure / 2;
  std::uint32_t rested_ = 0;  // tokens since the last draft token, while the depth was 0
  std::uint32_t rest_ = kFirstRest;
};

// A step as planned so far, without the draft tokens of the sequence in question.
struct SpeculationLoad {
  std::uint32_t rows = 0;       // of decodes, and of draft tokens of other sequences
  std::uint64_t tokens = 0;     // expected of them, in units of 1 / DraftAcceptance::kSure
  std::int64_t prefill_ns = 0;  // what its prefill takes besides
};

// Tokens expected of `depth` draft tokens, beyond the one that comes in any case, in
// units of 1 / DraftAcceptance::kSure.
std::uint64_t ExpectedTokens(std::uint32_t chance, std::uint32_t depth);

// The depth up to `most` that gives the step the most tokens per time; 0 unless
// the gain is worth more than the noise of the measurements.
std::uint32_t ChooseDepth(const DraftAcceptance& acceptance, const SpeculationLoad& load,
                          const StepCosts& costs, std::uint32_t most);

}  // namespace flotilla
