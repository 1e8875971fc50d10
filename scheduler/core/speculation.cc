#include "scheduler/core/speculation.h"

#include <algorithm>

namespace flotilla::scheduler {
namespace {

// Measurements come from outside. They are limited to 100 s per step.
constexpr std::int64_t kMostNs = 100'000'000'000;
// A step moves the estimate for its number of rows a quarter of the way to the measured time. It
// moves the estimates for other numbers nearly as far. The reason is that the cost of a row
// changes rarely, but other work on the machine often changes the time of all steps. The first
// four steps with a number of rows move their own estimate further, and do not move other
// estimates that come from a measurement.
constexpr std::int64_t kCostWeight = 4;
constexpr std::int64_t kOthersWeight = 5;
// A step that took longer than this many times the expected time counts as that many times.
// The limit for the first steps of a number of rows is wider, because little is known.
constexpr std::int64_t kKnownOutlier = 2;
constexpr std::int64_t kFirstOutlier = 16;
constexpr std::int64_t kUnit = 1 << 16;  // the unit of relative moves
// A draft token moves the estimated chance an eighth of the way to 1 (right) or 0 (wrong). In a
// trial it moves the chance half of the way.
constexpr std::int64_t kChanceWeight = 8;
constexpr std::int64_t kTrialWeight = 2;
// Drafting begins only if it gains at least one part in 32.
constexpr std::uint64_t kMargin = 32;

std::uint32_t Towards(std::uint32_t chance, std::uint32_t right, std::uint32_t of,
                      std::int64_t weight) {
  for (std::uint32_t i = 0; i < of; ++i) {
    const std::int64_t goal = i < right ? DraftAcceptance::kSure : 0;
    chance = static_cast<std::uint32_t>(chance + (goal - std::int64_t{chance}) / weight);
  }
  return chance;
}

std::uint32_t BestDepth(std::uint32_t chance, const SpeculationLoad& load, const StepCosts& costs,
                        std::uint32_t most) {
  const auto time = [&](std::uint32_t depth) {
    return static_cast<std::uint64_t>(
        std::clamp<std::int64_t>(costs.Ns(load.rows + depth) + load.prefill_ns, 1, kMostNs));
  };
  std::uint32_t best = 0;
  std::uint64_t best_tokens = load.tokens, best_time = time(0);
  for (std::uint32_t depth = 1; depth <= most; ++depth) {
    const std::uint64_t tokens = load.tokens + ExpectedTokens(chance, depth);
    const std::uint64_t takes = time(depth);
    // Compares tokens per time. The margin applies only to the first draft tokens.
    const std::uint64_t margin = best == 0 ? best_tokens / kMargin : 0;
    if (tokens * best_time <= (best_tokens + margin) * takes) continue;
    best = depth;
    best_tokens = tokens;
    best_time = takes;
  }
  return best;
}

}  // namespace

StepCosts::StepCosts(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step) {
  // The time of a prefill row includes its share, about 1/32, of the time to read the
  // weights. A draft token does not add that time.
  constexpr std::int64_t kShare = 32;
  const std::int64_t step = std::clamp<std::int64_t>(decode_ns_per_step, 0, kMostNs / 2);
  const std::int64_t prefill = std::clamp<std::int64_t>(prefill_ns_per_token, 0, kMostNs / 1024);
  const std::int64_t row = std::max(prefill - step / kShare, prefill / 2);
  for (std::size_t i = 0; i < kRows.size(); ++i) points_[i].ns = step + row * (kRows[i] - 1);
  Tabulate();
}

std::size_t StepCosts::Below(std::uint32_t rows) {
  std::size_t at = 0;
  while (at + 2 < kRows.size() && kRows[at + 1] <= rows) ++at;
  return at;
}

std::int64_t StepCosts::Interpolate(std::uint32_t rows) const {
  const std::size_t at = Below(rows);
  const std::int64_t width = kRows[at + 1] - kRows[at];
  const std::int64_t past = std::int64_t{rows} - kRows[at];
  return points_[at].ns + (points_[at + 1].ns - points_[at].ns) * past / width;
}

void StepCosts::Tabulate() {
  for (std::uint32_t rows = 1; rows <= kMostRows; ++rows) {
    ns_[rows] = std::max(ns_[rows - 1], Interpolate(rows));
  }
}

std::int64_t StepCosts::Ns(std::uint32_t rows) const {
  if (rows <= kMostRows) return ns_[rows];
  const std::int64_t last = ns_[kMostRows];  // each row beyond costs the average row's time
  return last + last / kMostRows * (std::int64_t{rows} - kMostRows);
}

void StepCosts::Observe(const StepTimings& step) {
  if (step.rows == 0 || step.decode_rows != step.rows || step.rows > kMostRows) return;
  const std::int64_t expected = std::max<std::int64_t>(Interpolate(step.rows), 1);
  const std::int64_t seen = std::clamp<std::int64_t>(step.compute_ns, 0, kMostNs);
  const std::size_t at = Below(step.rows);
  const auto own = [&](std::size_t i) {
    return (i == at && kRows[at + 1] != step.rows) || (i == at + 1 && kRows[at] != step.rows);
  };
  const std::uint64_t times = own(at) ? points_[at].seen : points_[at + 1].seen;
  const bool known = times >= kCostWeight;
  const std::int64_t weight = known ? kCostWeight : static_cast<std::int64_t>(times) + 1;
  const std::int64_t most = expected * (known ? kKnownOutlier : kFirstOutlier);
  const std::int64_t off = (std::min(seen, most) - expected) * kUnit / expected;
  ++steps_;
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    Point& point = points_[i];
    // A number of rows that has few measurements does not move estimates that come from a
    // measurement.
    const std::int64_t move = own(i) || point.seen == 0 ? off / weight
                              : known                   ? off / kOthersWeight
                                                        : 0;
    point.ns = std::clamp<std::int64_t>(point.ns + point.ns * move / kUnit, 1, kMostNs);
    if (!own(i)) continue;
    ++point.seen;
    point.last = steps_;
  }
  Tabulate();
}

bool StepCosts::Stale(std::uint32_t rows) const {
  if (rows > kMostRows) return false;
  const std::size_t at = Below(rows);
  const Point& point = points_[kRows[at + 1] == rows ? at + 1 : at];
  return steps_ - point.last > std::min(8 * (point.seen + 1), kLongestUnseen);
}

void DraftAcceptance::OnResult(std::uint32_t depth, std::uint32_t drafted, std::uint32_t accepted,
                               std::uint32_t tokens) {
  if (depth == 0) {
    rested_ = std::min(rested_ + tokens, kLongestRest);
    return;
  }
  if (drafted == 0) return;
  // The draft token after the last right one was wrong, if there was one. Nothing is known
  // about the draft tokens behind it.
  const std::uint32_t judged = std::min(drafted, accepted + 1);
  const bool tried = trial();
  chance_ = Towards(chance_, accepted, judged, tried ? kTrialWeight : kChanceWeight);
  if (accepted == drafted) {
    rest_ = kFirstRest;
  } else if (tried) {
    rest_ = std::min(2 * rest_, kLongestRest);
  }
  rested_ = 0;
}

std::uint64_t ExpectedTokens(std::uint32_t chance, std::uint32_t depth) {
  std::uint64_t all = 0, right = DraftAcceptance::kSure;
  for (std::uint32_t i = 0; i < depth; ++i) {
    right = right * chance / DraftAcceptance::kSure;
    all += right;
  }
  return all;
}

std::uint32_t ChooseDepth(const DraftAcceptance& acceptance, const SpeculationLoad& load,
                          const StepCosts& costs, std::uint32_t most) {
  const std::uint32_t depth = BestDepth(acceptance.chance(), load, costs, most);
  if (depth > 0 || !acceptance.trial()) return depth;
  const bool may_pay =
      acceptance.overdue() || BestDepth(DraftAcceptance::kSure, load, costs, most) > 0;
  return may_pay ? std::min(DraftAcceptance::kTrialDepth, most) : 0;
}

}  // namespace flotilla::scheduler
