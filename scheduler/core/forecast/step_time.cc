#include "scheduler/core/forecast/step_time.h"

#include <algorithm>
#include <cstdlib>

namespace flotilla::scheduler {
namespace {

// With these limits all sums and products below fit 127 bits.
constexpr std::uint64_t kMostRows = std::uint64_t{1} << 24;
constexpr std::uint64_t kMostContext = std::uint64_t{1} << 48;
constexpr std::int64_t kMostFeature = std::int64_t{1} << 35;
constexpr std::int64_t kLeastNs = 1000;  // no step is predicted to be shorter while fitting
constexpr int kFeatureBits = 42;
constexpr int kTermBits = 8;
constexpr int kContextBits = 12;  // contexts are counted in 4,096 positions
// A step's weight falls by one part in 2^6 with each later step of its kind.
constexpr int kForgetBits = 6;
constexpr int kSweeps = 4;
constexpr std::int64_t kOne = 4096;  // the unit of ratios
// A paused process gives one step of many seconds. A step counts as at most 4 times as long or
// short as predicted.
constexpr std::int64_t kOutlier = 4;
// Eight steps in a row that are off by half on one side are no outliers. The first ones
// correct the description sooner.
constexpr std::int64_t kRun = 8, kFirstRun = 3;
constexpr std::int64_t kFar = kOne * 3 / 2;
constexpr std::uint32_t kRatioMemory = 512;

}  // namespace

StepTimeModel::StepTimeModel(std::int64_t prefill_ns_per_token, std::int64_t decode_ns_per_step)
    : ratios_{Ratios(kRatioMemory), Ratios(kRatioMemory)} {
  // The described time of a prefill row includes its share, about 1/32, of the time to read the
  // weights.
  constexpr std::int64_t kShare = 32;
  const std::int64_t step = std::clamp<std::int64_t>(decode_ns_per_step, 0, kMostNs / 2);
  const std::int64_t prefill = std::clamp<std::int64_t>(prefill_ns_per_token, 0, kMostNs / 1024);
  const std::int64_t row = std::max(prefill - step / kShare, prefill / 2);
  terms_ = {step << kTermBits, prefill << kTermBits, 0, row << kTermBits, 0};
  StepShape one, batch, prompt, both;
  one.AddDecode(100);
  for (int i = 0; i < 32; ++i) batch.AddDecode(200);
  prompt.AddChunk(0, 256);
  both = batch;
  both.AddChunk(256, 128);
  for (const StepShape& shape : {one, batch, prompt, both}) {
    const std::int64_t ns = std::max(PredictNs(shape), kLeastNs);
    Accumulate(equations_[shape.prefill_rows > 0], shape, ns, ns);
  }
  ForgetRatios();
}

// A few ratios stand for what is not known yet.
void StepTimeModel::ForgetRatios() {
  for (Ratios& ratios : ratios_) {
    ratios = Ratios(kRatioMemory);
    for (const std::int64_t ratio : {kOne / 2, kOne, kOne, kOne, kOne * 5 / 4, kOne * 2}) {
      ratios.Add(static_cast<std::uint64_t>(ratio));
    }
  }
}

std::int64_t StepTimeModel::PredictNs(const StepShape& shape) const {
  const Wide rows = Wide{terms_[0]} + Wide{terms_[1]} * std::min(shape.prefill_rows, kMostRows) +
                    Wide{terms_[3]} * std::min(shape.decode_rows, kMostRows);
  const Wide context = Wide{terms_[2]} * std::min(shape.prefill_context, kMostContext) +
                       Wide{terms_[4]} * std::min(shape.decode_context, kMostContext);
  const Wide ns = (rows + (context >> kContextBits)) >> kTermBits;
  return static_cast<std::int64_t>(std::clamp<Wide>(ns, 1, kMostNs));
}

std::int64_t StepTimeModel::SureNs(const StepShape& shape) const {
  const std::uint64_t rows = shape.prefill_rows + shape.decode_rows;
  StepShape seen = shape;
  seen.decode_context = std::min(shape.decode_context, most_decode_context_);
  const std::int64_t ns = PredictNs(seen);
  if (rows >= fewest_rows_) return ns;
  return static_cast<std::int64_t>(Wide{ns} * rows / fewest_rows_);
}

std::int64_t StepTimeModel::QuantileNs(const StepShape& shape, std::uint32_t permille) const {
  const auto ratio = static_cast<Wide>(ratios_[shape.prefill_rows > 0].Quantile(permille));
  return static_cast<std::int64_t>(std::clamp<Wide>(PredictNs(shape) * ratio / kOne, 1, kMostNs));
}

std::int64_t StepTimeModel::QuickestNs(std::int64_t ns, const StepShape& largest) const {
  constexpr std::uint64_t kFew = 32;
  if (since_change_ < kFew) return 0;
  const bool extrapolates = largest.prefill_rows > 4 * most_prefill_rows_ ||
                            largest.prefill_context > 4 * most_prefill_context_;
  if (extrapolates) return ns / 4;
  constexpr std::uint32_t kLow = 100;  // permille
  const std::uint64_t least = std::min(ratios_[0].Quantile(kLow), ratios_[1].Quantile(kLow));
  const auto ratio = std::min<std::int64_t>(static_cast<std::int64_t>(least), kOne);
  // The mean of many steps varies less than one step does, but a model of a few terms is off by
  // a fifth where a machine is not linear.
  return static_cast<std::int64_t>(Wide{ns} * ratio / kOne * 4 / 5);
}

std::uint32_t StepTimeModel::RowsWithin(const Target& target, StepShape shape, std::uint64_t begin,
                                        std::uint32_t most) const {
  Wide ratio = kOne;
  if (target.strict) ratio = std::max(ratio, Wide{ratios_[1].Quantile(950)} * 10 / 11);
  const auto fits = [&](std::uint32_t rows) {
    StepShape with = shape;
    with.AddChunk(begin, rows);
    return PredictNs(with) * ratio / kOne <= target.ns;
  };
  std::uint32_t low = 0, high = most;
  while (low < high) {
    const std::uint32_t middle = high - (high - low) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

StepTimeModel::Vector StepTimeModel::Features(const StepShape& shape, std::int64_t predicted_ns) {
  const auto feature = [&](std::uint64_t value, int bits) {
    const Wide scaled = (static_cast<Wide>(value) << bits) / predicted_ns;
    return static_cast<std::int64_t>(std::min<Wide>(scaled, kMostFeature));
  };
  constexpr int kBits = kFeatureBits - kContextBits;
  return {feature(1, kFeatureBits), feature(std::min(shape.prefill_rows, kMostRows), kFeatureBits),
          feature(std::min(shape.prefill_context, kMostContext), kBits),
          feature(std::min(shape.decode_rows, kMostRows), kFeatureBits),
          feature(std::min(shape.decode_context, kMostContext), kBits)};
}

void StepTimeModel::Accumulate(Equations& equations, const StepShape& shape,
                               std::int64_t predicted_ns, std::int64_t ns) {
  const Vector features = Features(shape, predicted_ns);
  const Wide measured = (Wide{ns} << (kFeatureBits + kTermBits)) / predicted_ns;
  for (std::size_t i = 0; i < kTerms; ++i) {
    equations.b[i] += features[i] * measured - (equations.b[i] >> kForgetBits);
    for (std::size_t j = 0; j < kTerms; ++j) {
      Wide& a = equations.a[i][j];
      a += Wide{features[i]} * features[j] - (a >> kForgetBits);
    }
  }
}

void StepTimeModel::Improve() {
  constexpr Wide kMost = Wide{kMostNs} << kTermBits;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t i = 0; i < kTerms; ++i) {
      Wide own = 0, rest = 0;
      for (const Equations& equations : equations_) {
        own += equations.a[i][i];
        rest += equations.b[i];
        for (std::size_t j = 0; j < kTerms; ++j) {
          if (j != i) rest -= equations.a[i][j] * terms_[j];
        }
      }
      if (own > 0) terms_[i] = static_cast<std::int64_t>(std::clamp<Wide>(rest / own, 0, kMost));
    }
  }
}

// All times have become `ratio` times as long, so the terms have, and the features of earlier
// steps, which are relative to predicted times, have become smaller. Earlier steps also count
// less.
void StepTimeModel::Rescale(std::int64_t ratio) {
  constexpr int kFewerBits = 3;
  constexpr Wide kMostSum = Wide{kMostFeature} * kMostFeature << kForgetBits;
  for (std::int64_t& term : terms_) {
    term = static_cast<std::int64_t>(
        std::min<Wide>(Wide{term} * ratio / kOne, Wide{kMostNs} << kTermBits));
  }
  for (Equations& equations : equations_) {
    for (std::size_t i = 0; i < kTerms; ++i) {
      equations.b[i] = std::min((equations.b[i] >> kFewerBits) * kOne / ratio, kMostSum);
      for (Wide& a : equations.a[i]) {
        a = std::min((a >> kFewerBits) * kOne / ratio * kOne / ratio, kMostSum);
      }
    }
  }
  ForgetRatios();
  since_change_ = 0;
  fewest_rows_ = ~0ull;
}

void StepTimeModel::NoticeChange(std::int64_t ratio) {
  const std::int64_t side = ratio > kFar ? 1 : ratio * kFar < kOne * kOne ? -1 : 0;
  if (side == 0 || side * side_ < 0) side_ = 0;
  if (side == 0) return;
  const bool nearer = side > 0 ? ratio < nearest_ : ratio > nearest_;
  if (side_ == 0 || nearer) nearest_ = ratio;
  side_ += side;
  if (std::abs(side_) < (steps_ < kWarmUp ? kFirstRun : kRun)) return;
  Rescale(std::clamp<std::int64_t>(nearest_, kOne / 256, kOne * 256));
  side_ = 0;
}

void StepTimeModel::Observe(const StepShape& shape, std::int64_t ns) {
  if (ns <= 0 || shape.prefill_rows + shape.decode_rows == 0) return;
  const bool prefill = shape.prefill_rows > 0;
  const std::int64_t predicted = std::max(PredictNs(shape), kLeastNs);
  const std::int64_t seen = std::clamp(ns, kLeastNs, kMostNs);
  const auto ratio = std::clamp<Wide>(Wide{seen} * kOne / predicted, 1, kOne << 11);
  ratios_[prefill].Add(static_cast<std::uint64_t>(ratio));
  Accumulate(
      equations_[prefill], shape, predicted,
      std::clamp(seen, predicted / kOutlier, std::min(predicted, kMostNs / kOutlier) * kOutlier));
  Improve();
  ++steps_;
  ++since_change_;
  fewest_rows_ = std::min(fewest_rows_, shape.prefill_rows + shape.decode_rows);
  since_decodes_alone_ += prefill;
  most_prefill_rows_ = std::max(most_prefill_rows_, shape.prefill_rows);
  most_prefill_context_ = std::max(most_prefill_context_, shape.prefill_context);
  most_decode_context_ = std::max(most_decode_context_, shape.decode_context);
  NoticeChange(static_cast<std::int64_t>(ratio));
}

}  // namespace flotilla::scheduler
